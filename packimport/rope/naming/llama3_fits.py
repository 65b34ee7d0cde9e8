"""llama3 from ranges of frequencies, with any parameters."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from packimport.rope.naming.baked import TWO_ULPS, Floats
from packimport.rope.naming.bounds import Range
from packimport.rope.naming.edges import head_thetas, in_turns, over_plain, shares, tail_factors
from packimport.rope.naming.mold import Fit, Mold
from packimport.rope.naming.simplest import cost, picks, whole_picks

# high_freq_factor tried where none is declared, the canonical one first.
_HIGHS = (4.0, 2.0, 8.0)
# How many pairs of low_freq_factor and original length are tried, besides low = 1.
_PAIRS = 6
# Beyond any high_freq_factor.
_MOST = 1e6


def llama3(seen: Range, mold: Mold) -> Iterator[Fit]:
    """llama3 with any parameters, low_freq_factor 1 unless the original length is then no integer.

    With low = 1 the unknowns are theta, the factor, the original length L and
    the high factor h: a pair that turns u times per position is plain for a
    share of (L*u - 1)/(h - 1), cut off at 0 and 1.
    """
    seen = seen.widened(TWO_ULPS)
    yield from in_turns(
        _banded(seen, theta, factor, mold)
        for theta in head_thetas(seen, mold)
        for factor in tail_factors(over_plain(seen, theta, mold), mold)
    )


def _banded(seen: Range, theta: float, factor: float, mold: Mold) -> Iterator[Fit]:
    """The fits of one theta and one factor."""
    turns = mold.plain(theta) / (2 * math.pi)
    band = _Band.of(shares(over_plain(seen, theta, mold), factor), turns)
    tried: set[tuple[float, float]] = set()
    for high in _highs(band, mold):
        for low, original in _lengths(band.lengths(high - 1), mold):
            # The same L and h by a power of two are the same numbers throughout.
            if (high, original / low) not in tried:
                tried.add((high, original / low))
                yield from mold.fit(
                    "llama3",
                    theta,
                    factor=factor,
                    low_freq_factor=low,
                    high_freq_factor=high * low,
                    original_max_position_embeddings=original,
                )


@dataclass(frozen=True, slots=True, eq=False)
class _Band:
    """What the pairs allow for L and x = h - 1.

    A pair with a share above 0 asks for L*u >= 1 + share*x, one with a share
    below 1 for L*u <= 1 + share*x.
    """

    more_turns: Floats
    more_share: Floats
    less_turns: Floats
    less_share: Floats

    @classmethod
    def of(cls, share: Range, turns: Floats) -> _Band:
        """The conditions of pairs with these shares, turning so many times per position."""
        more, less = share.low > 0, share.high < 1
        return cls(turns[more], share.low[more], turns[less], share.high[less])

    def lengths(self, x: float) -> tuple[float, float]:
        """The least and the largest L for x."""
        least = (1 + self.more_share * x) / self.more_turns
        most = (1 + self.less_share * x) / self.less_turns
        return float(least.max(initial=0)), float(most.min(initial=np.inf))

    def steps(self, length: float) -> tuple[float, float]:
        """The least and the largest x for an L."""
        with np.errstate(divide="ignore", invalid="ignore"):
            most = (length * self.more_turns - 1) / self.more_share
            least = (length * self.less_turns - 1) / self.less_share
        return (
            float(np.max(least, where=self.less_share > 0, initial=0)),
            float(np.min(most, initial=_MOST)),
        )

    def all_steps(self) -> tuple[float, float]:
        """The least and the largest x for which some L is left: one interval, all being lines."""
        slope = (self.less_share / self.less_turns)[:, None] - self.more_share / self.more_turns
        gap = 1 / self.more_turns - (1 / self.less_turns)[:, None]
        with np.errstate(divide="ignore", invalid="ignore"):
            bound = gap / slope
        return (
            float(np.max(bound, where=slope > 0, initial=0)),
            float(np.min(bound, where=slope < 0, initial=_MOST)),
        )


def _highs(band: _Band, mold: Mold) -> Iterator[float]:
    """h: declared or canonical; those that make L declared or a power of two; simple ones."""
    least, most = band.all_steps()
    if not len(band.more_turns) or not len(band.less_turns) or not least <= most:
        return
    ropes = [r for r in mold.candidates if r.low_freq_factor and r.high_freq_factor]
    wanted = [*((r.high_freq_factor or 0) / (r.low_freq_factor or 1) for r in ropes), *_HIGHS]
    yield from (high for high in wanted if least <= high - 1 <= most)
    lengths = (*band.lengths(least), *band.lengths(most))
    for length in whole_picks(max(min(lengths), 1), min(max(lengths), 1e9), _originals(mold)):
        yield from _above_one(*band.steps(length))
    yield from _above_one(least, most)


def _above_one(least: float, most: float) -> Iterator[float]:
    yield from picks(1 + max(least, 1e-6), 1 + most)


def _lengths(allowed: tuple[float, float], mold: Mold) -> Iterator[tuple[float, int]]:
    """low_freq_factor and original length, whose ratio is L.

    The declared low factor, then 1, then the simplest pairs. The float32 steps
    make more of a difference than one wants: another pair of nearly the same L
    is up to 10 ulps off.
    """
    least, most = allowed
    if not 1 <= least <= most < np.inf:
        return
    hints = [hint for hint in _originals(mold) if hint]
    for low in (*(w for w in mold.hints("low_freq_factor") if w), 1.0):
        for original in whole_picks(least * low, most * low, hints):
            yield low, original
    middle = least / 2 + most / 2
    doubled = (2.0 ** (math.floor(math.log2(middle)) + n) for n in range(5))
    wanted = dict.fromkeys((*hints, *doubled, float(max(round(middle), 1))))
    others = [(low, int(o)) for o in wanted for low in picks(o / most, o / least)]
    yield from sorted(others, key=lambda pair: cost(pair[0]) + cost(pair[1]))[:_PAIRS]


def _originals(mold: Mold) -> tuple[float | None, ...]:
    return (
        *mold.hints("original_max_position_embeddings"),
        *mold.hints("max_position_embeddings"),
    )
