"""What a Rope must hold: the fields of its type, each in range, and in accord.

Stricter than transformers, which only warns on most of these and computes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from types import MappingProxyType

from packimport.errors import ScheduleError
from packimport.rope.axes import validate_sections
from packimport.rope.fields import COMMON, FIELDS
from packimport.rope.ranges import CHECKS, allowed_in, refuse
from packimport.rope.schedule import Rope


def validate(rope: Rope) -> None:
    """Refuse a Rope that no formula accepts.

    Raises ScheduleError, whose `key` is the field at fault: an unknown type, a
    field that is missing or that the type does not have, a value of the wrong
    kind or out of range, a list of the wrong length.
    """
    if not isinstance(rope.type, str) or rope.type not in FIELDS:
        raise ScheduleError(
            "type", "unknown type of schedule", found=repr(rope.type), allowed=", ".join(FIELDS)
        )
    _check_presence(rope)
    for field, check in CHECKS.items():
        if getattr(rope, field) is not None:
            check(rope, field)
    _check_dimensions(rope)
    if rope.type in TYPE_CHECKS:
        TYPE_CHECKS[rope.type](rope)
    validate_sections(rope)


def _check_presence(rope: Rope) -> None:
    own = FIELDS[rope.type]
    # Hunyuan's alpha alone sets the base.
    required = own.required if rope.alpha is None or rope.type != "dynamic" else frozenset()
    known = COMMON | own.required | own.optional
    for field in (f.name for f in fields(Rope)):
        given = getattr(rope, field) is not None
        if given and field not in known:
            raise ScheduleError(
                field,
                f"a field that type {rope.type} does not have",
                found=getattr(rope, field),
                allowed=", ".join(sorted(own.required | own.optional)) or "none of its kind",
            )
        if not given and field in required | {"theta", "head_dim", "rotary_dim"}:
            raise ScheduleError(
                field,
                f"type {rope.type} needs this field and it is missing",
                allowed=allowed_in(field),
            )


def _check_dimensions(rope: Rope) -> None:
    if rope.rotary_dim % 2:
        raise ScheduleError(
            "rotary_dim", "pairs need an even dimension", found=rope.rotary_dim, allowed="even"
        )
    if rope.rotary_dim > rope.head_dim:
        raise ScheduleError(
            "rotary_dim",
            "more entries rotate than a head has",
            found=rope.rotary_dim,
            allowed=f"up to head_dim, {rope.head_dim}",
        )
    part = rope.partial_rotary_factor
    if part is None:
        return
    expected = rope.head_dim if rope.type == "proportional" else int(rope.head_dim * part)
    if rope.rotary_dim != expected:
        raise ScheduleError(
            "rotary_dim",
            f"contradicts head_dim {rope.head_dim} and partial_rotary_factor {part}",
            found=rope.rotary_dim,
            allowed=str(expected),
        )


def _check_llama3(rope: Rope) -> None:
    low, high = rope.low_freq_factor, rope.high_freq_factor
    assert low is not None
    assert high is not None
    if high <= low:
        refuse(rope, "high_freq_factor", f"a number above low_freq_factor, {low}")


def _check_yarn(rope: Rope) -> None:
    if rope.theta <= 1:
        refuse(rope, "theta", "a number above 1: the ramp divides by its logarithm")
    fast = 32 if rope.beta_fast is None else rope.beta_fast
    slow = 1 if rope.beta_slow is None else rope.beta_slow
    if fast < slow and rope.beta_fast is None:
        refuse(rope, "beta_slow", f"up to beta_fast, which is {fast} where nothing is stated")
    if fast < slow:
        refuse(rope, "beta_fast", f"a number from beta_slow, {slow}, up")
    if rope.factor is None:
        _check_ratio(rope)


def _check_longrope(rope: Rope) -> None:
    if rope.original_max_position_embeddings == 1:
        refuse(rope, "original_max_position_embeddings", "an integer above 1")
    one, other = rope.short_mscale, rope.long_mscale
    if (one is None) != (other is None):
        missing = "short_mscale" if one is None else "long_mscale"
        raise ScheduleError(
            missing,
            "short_mscale and long_mscale come together, and this one is missing",
            allowed=allowed_in(missing),
        )
    if rope.factor is None and rope.attention_factor is None and one is None:
        _check_ratio(rope, longer=False)


def _check_ratio(rope: Rope, *, longer: bool = True) -> None:
    """Where `factor` is null the two lengths stand for it."""
    longest, original = rope.max_position_embeddings, rope.original_max_position_embeddings
    assert original is not None
    if longest is None:
        raise ScheduleError(
            "max_position_embeddings",
            "factor is null, so max_position_embeddings is needed and it is missing",
            allowed=allowed_in("max_position_embeddings"),
        )
    if longer and longest < original:
        refuse(
            rope,
            "max_position_embeddings",
            f"an integer from original_max_position_embeddings, {original}, up",
        )


def _check_dynamic(rope: Rope) -> None:
    if rope.rotary_dim == 2:
        refuse(rope, "rotary_dim", "4 or more: the base's exponent divides by rotary_dim - 2")


TYPE_CHECKS: Mapping[str, Callable[[Rope], None]] = MappingProxyType(
    {
        "llama3": _check_llama3,
        "yarn": _check_yarn,
        "longrope": _check_longrope,
        "dynamic": _check_dynamic,
    }
)
