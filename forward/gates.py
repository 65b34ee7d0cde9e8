"""Gates: limits that a comparison is held to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from forward.figures import Figures, number

_WORDS = {
    "max_kl": ("mean KL", "<="),
    "max_kl_p999": ("99.9 % KL", "<="),
    "min_top1": ("same top-1", ">="),
    "max_floor": ("mean KL against the floor", "<="),
    "max_floor_p999": ("99.9 % KL against the floor", "<="),
    "max_floor_top1": ("other top-1 against the floor", "<="),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """What is allowed; None allows all.

    max_kl:      of the mean KL, in nats. max_kl_p999: of its 99.9 % quantile.
    min_top1:    of the share of equal top-1, 0 to 1.
    max_floor:   of the mean KL, in multiples of the noise floor's. max_floor_p999: of its
                 99.9 % quantile. max_floor_top1: of the share of other top-1.
    by_bucket:   each range of positions is held to them, too.
    """

    max_kl: float | None = None
    max_kl_p999: float | None = None
    min_top1: float | None = None
    max_floor: float | None = None
    max_floor_p999: float | None = None
    max_floor_top1: float | None = None
    by_bucket: bool = False

    @property
    def any(self) -> bool:
        """Whether anything is limited."""
        return self.of_kl or self.over_floor or self.min_top1 is not None

    @property
    def of_kl(self) -> bool:
        """Whether a KL is."""
        limits = (self.max_kl, self.max_kl_p999, self.max_floor, self.max_floor_p999)
        return any(limit is not None for limit in limits)

    @property
    def over_floor(self) -> bool:
        """Whether anything is by the noise floor."""
        limits = (self.max_floor, self.max_floor_p999, self.max_floor_top1)
        return any(limit is not None for limit in limits)


@dataclass(frozen=True, kw_only=True, slots=True)
class Gate:
    """A limit that a range of positions was held to; name: a field of Limits."""

    name: str
    range: str
    limit: float
    value: float
    passed: bool

    def to_dict(self) -> dict[str, object]:
        """As JSON."""
        return {key: number(value) for key, value in asdict(self).items()}

    def text(self) -> str:
        """One line."""
        what, sign = _WORDS[self.name]
        where = "" if self.range == "all" else f" at {self.range}"
        outcome = "passed" if self.passed else "FAILED"
        return f"{outcome}: {what}{where} {self.value:.6g}, wanted {sign} {self.limit:g}"


def gates(
    limits: Limits, ranges: Sequence[Figures], floor: Sequence[Figures] | None
) -> tuple[Gate, ...]:
    """Hold the first range, which is the whole, and if asked the others, to the limits.

    floor: the same ranges of the noise floor; needed by what is held to it.
    """
    count = len(ranges) if limits.by_bucket else 1
    return tuple(
        gate
        for index in range(count)
        for gate in _gates(limits, ranges[index], floor[index] if floor else None)
    )


def _gates(limits: Limits, figures: Figures, floor: Figures | None) -> Iterator[Gate]:
    other = 1 - figures.same_top1
    upper: list[tuple[str, float, float | None, float]] = [
        ("max_kl", figures.kl_mean, limits.max_kl, 1.0),
        ("max_kl_p999", figures.kl_p999, limits.max_kl_p999, 1.0),
    ]
    if floor is not None:
        upper += [
            ("max_floor", figures.kl_mean, limits.max_floor, floor.kl_mean),
            ("max_floor_p999", figures.kl_p999, limits.max_floor_p999, floor.kl_p999),
            ("max_floor_top1", other, limits.max_floor_top1, 1 - floor.same_top1),
        ]
    for name, value, times, unit in upper:
        if times is not None:
            limit = times * unit
            yield Gate(
                name=name, range=figures.name, limit=limit, value=value, passed=value <= limit
            )
    if limits.min_top1 is not None:
        yield Gate(
            name="min_top1",
            range=figures.name,
            limit=limits.min_top1,
            value=figures.same_top1,
            passed=figures.same_top1 >= limits.min_top1,
        )
