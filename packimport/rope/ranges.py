"""Ranges: what each field of a Rope may hold, whatever its type."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from packimport.errors import ScheduleError
from packimport.rope.powers import FLOAT32_MAX
from packimport.rope.schedule import Rope


def in_range(value: object, low: float) -> bool:
    """Whether `value` is a number from `low` to float32's largest: not NaN, not infinite."""
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and low <= value <= FLOAT32_MAX
    )


_POSITIVE = "a finite number above 0"
_NOT_NEGATIVE = "a finite number, 0 or above"
_FROM_ONE = "a finite number, 1 or above"
_PART = "a number above 0 and up to 1"
_COUNT = "an integer above 0"
_FLAG = "true or false"


def refuse(rope: Rope, field: str, allowed: str) -> None:
    """Raise ScheduleError for the value that `rope` has in `field`."""
    raise ScheduleError(field, "a value out of range", found=getattr(rope, field), allowed=allowed)


def _positive(rope: Rope, field: str) -> None:
    value = getattr(rope, field)
    if not in_range(value, 0) or value == 0:
        refuse(rope, field, _POSITIVE)


def _not_negative(rope: Rope, field: str) -> None:
    if not in_range(getattr(rope, field), 0):
        refuse(rope, field, _NOT_NEGATIVE)


def _at_least_one(rope: Rope, field: str) -> None:
    if not in_range(getattr(rope, field), 1):
        refuse(rope, field, _FROM_ONE)


def _fraction(rope: Rope, field: str) -> None:
    value = getattr(rope, field)
    if not in_range(value, 0) or not 0 < value <= 1:
        refuse(rope, field, _PART)


def _count(rope: Rope, field: str) -> None:
    value = getattr(rope, field)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**53:
        refuse(rope, field, _COUNT)


def _flag(rope: Rope, field: str) -> None:
    if not isinstance(getattr(rope, field), bool):
        refuse(rope, field, _FLAG)


def _per_pair(rope: Rope, field: str) -> None:
    values = getattr(rope, field)
    if not isinstance(values, tuple) or len(values) != rope.pairs:
        found = f"{len(values)} entries" if isinstance(values, tuple) else values
        raise ScheduleError(
            field, "a list of the wrong length", found=found, allowed=f"{rope.pairs}, one per pair"
        )
    for index, value in enumerate(values):
        if not in_range(value, 0) or value == 0:
            raise ScheduleError(
                field,
                f"entry {index} is out of range",
                found=repr(value),
                allowed="finite numbers above 0",
            )


# In this order: a list's length depends on rotary_dim.
CHECKS: Mapping[str, Callable[[Rope, str], None]] = MappingProxyType(
    {
        "theta": _positive,
        "head_dim": _count,
        "rotary_dim": _count,
        "interleaved": _flag,
        "trailing": _flag,
        "max_position_embeddings": _count,
        "original_max_position_embeddings": _count,
        "factor": _at_least_one,
        "low_freq_factor": _positive,
        "high_freq_factor": _positive,
        "beta_fast": _positive,
        "beta_slow": _positive,
        "truncate": _flag,
        "attention_factor": _positive,
        "mscale": _not_negative,
        "mscale_all_dim": _not_negative,
        "short_factor": _per_pair,
        "long_factor": _per_pair,
        "short_mscale": _positive,
        "long_mscale": _positive,
        "partial_rotary_factor": _fraction,
        "alpha": _positive,
        "freq_factors": _per_pair,
    }
)


_TEXTS: Mapping[Callable[[Rope, str], None], str] = {
    _positive: _POSITIVE,
    _not_negative: _NOT_NEGATIVE,
    _at_least_one: _FROM_ONE,
    _fraction: _PART,
    _count: _COUNT,
    _flag: _FLAG,
    _per_pair: "a list of finite numbers above 0, one per pair",
}


def allowed_in(field: str) -> str:
    """What a field may hold, for the error where it is missing."""
    return _TEXTS[CHECKS[field]]
