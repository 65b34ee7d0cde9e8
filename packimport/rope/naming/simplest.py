"""The simplest numbers of a range: what people write into configs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

# A double carries 17 significant digits.
_DIGITS = 17


def simplest(low: float, high: float, digits: int = 1) -> float:
    """The number of fewest significant digits in [low, high], with at least `digits` allowed.

    0 < low <= high. Among equals the one nearest the middle.
    """
    middle = low / 2 + high / 2
    for count in range(digits, _DIGITS):
        exponent = math.floor(math.log10(high)) - count + 1
        step = 10.0**exponent
        first, last = math.ceil(low / step), math.floor(high / step)
        if first <= last:
            return float(f"{min(max(round(middle / step), first), last)}e{exponent}")
    return middle


def cost(value: float) -> int:
    """How many digits `value` takes: decimal ones, or those of the odd part of an integer."""
    mantissa = f"{abs(value):.16e}".split("e")[0].replace(".", "").rstrip("0")
    if value != int(value) or value == 0:
        return len(mantissa)
    whole = int(abs(value))
    return min(len(mantissa), len(str(whole // (whole & -whole))))


def picks(low: float, high: float, hints: Iterable[float | None] = ()) -> Iterator[float]:
    """Numbers of [low, high] worth trying, the likeliest first.

    The hints that lie in it, a power of two, the simplest number, finer ones,
    the middle. Nothing where the range is empty or not above 0.
    """
    if not 0 < low <= high < math.inf:
        return
    seen: set[float] = set()
    for value in _ordered(low, high, hints):
        if low <= value <= high and value not in seen:
            seen.add(value)
            yield value


def _ordered(low: float, high: float, hints: Iterable[float | None]) -> Iterator[float]:
    yield from (float(hint) for hint in hints if hint is not None)
    yield 2.0 ** round(math.log2(low) / 2 + math.log2(high) / 2)
    first = simplest(low, high)
    yield first
    digits = len(f"{first:.16e}".split("e")[0].replace(".", "").rstrip("0"))
    for extra in (1, 3):
        yield simplest(low, high, digits + extra)
    yield float(low / 2 + high / 2)


def whole_picks(low: float, high: float, hints: Iterable[float | None] = ()) -> Iterator[int]:
    """The integers among `picks`, and the one nearest the middle."""
    seen: set[int] = set()
    nearest = float(round(low / 2 + high / 2)) if low <= high < math.inf else 0.0
    for value in (*picks(low, high, hints), nearest):
        if value == int(value) and low <= value <= high and value >= 1 and int(value) not in seen:
            seen.add(int(value))
            yield int(value)
