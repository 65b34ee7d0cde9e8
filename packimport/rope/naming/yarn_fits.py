"""yarn from ranges of frequencies, with any factor and original length."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from packimport.rope.naming.baked import TWO_ULPS
from packimport.rope.naming.bounds import Range
from packimport.rope.naming.edges import (
    NOISE,
    head_thetas,
    in_turns,
    over_plain,
    shares,
    tail_factors,
)
from packimport.rope.naming.mold import Fit, Mold
from packimport.rope.naming.simplest import picks, simplest, whole_picks

CANONICAL = (32.0, 1.0)


@dataclass(frozen=True, slots=True, eq=False)
class _Setting:
    """What is given while the other parameters are looked for.

    betas: (beta_fast, beta_slow).
    """

    mold: Mold
    amplitude: Range
    betas: tuple[float, float]

    def fit(self, theta: float, factor: float, original: int, **fields: float) -> Iterator[Fit]:
        """The fit; its attention factor is stated where the formula's own is not the table's."""
        low, high = float(self.amplitude.low), float(self.amplitude.high)
        if not low <= 0.1 * math.log(factor) + 1 <= high and low > 0:
            fields["attention_factor"] = 1.0 if low <= 1 <= high else simplest(low, high)
        if self.betas != CANONICAL:
            fields |= {"beta_fast": self.betas[0], "beta_slow": self.betas[1]}
        fields["original_max_position_embeddings"] = original
        yield from self.mold.fit("yarn", theta, factor=factor, **fields)


def yarn(
    seen: Range, mold: Mold, amplitude: Range, thetas: tuple[float, ...] = ()
) -> Iterator[Fit]:
    """yarn with any factor and original length, betas 32 and 1 or as a candidate has them.

    thetas: those to try; any where there are none.
    """
    seen = seen.widened(TWO_ULPS)
    betas = dict.fromkeys(
        (r.beta_fast or 32.0, r.beta_slow or 1.0) for r in mold.candidates if r.type == "yarn"
    )
    betas[CANONICAL] = None
    yield from in_turns(
        family(over_plain(seen, theta, mold), theta, _Setting(mold, amplitude, pair))
        for theta in (thetas or head_thetas(seen, mold))
        for pair in betas
        for family in (_whole, _fractional)
    )


def _whole(ratio: Range, theta: float, setting: _Setting) -> Iterator[Fit]:
    """Ramps from one whole pair to another, as yarn has them unless truncate is false."""
    for first, last, factors in _ramps(ratio, setting.mold):
        lengths = _whole_lengths(first, last, theta, setting)
        for factor in _factors(factors, setting):
            for original in lengths:
                yield from setting.fit(theta, factor, original)


def _fractional(ratio: Range, theta: float, setting: _Setting) -> Iterator[Fit]:
    """Ramps between any points, as yarn has them where truncate is false."""
    mold, (fast, slow) = setting.mold, setting.betas
    width = math.log(fast / slow) / math.log(theta) * mold.pairs
    if width <= 0:
        return
    index = np.arange(mold.pairs)
    for factor in tail_factors(ratio, mold):
        share = shares(ratio, factor)
        # 1 - share = (index - first)/width where the pair lies on the ramp
        most = np.min((index - width * (1 - share.high))[share.high < 1], initial=np.inf)
        least = np.max((index - width * (1 - share.low))[share.low > 0], initial=0.0)
        if least <= most < mold.rotary_dim:
            low, high = (
                2 * math.pi * fast * theta ** float(first / mold.pairs) for first in (least, most)
            )
            for original in whole_picks(low, high, _hints(mold)):
                yield from setting.fit(theta, factor, original, truncate=False)


def _ramps(ratio: Range, mold: Mold) -> Iterator[tuple[int, int, Range]]:
    """(first pair, last pair, range of the factor) of whole ramps that fit every pair.

    On a given ramp each pair's ratio to plain, 1/f + (1 - 1/f)*keep, bounds 1/f.
    """
    plain = int(np.argmin(ratio.high >= 1)) if not (ratio.high >= 1).all() else mold.pairs
    index = np.arange(mold.pairs)
    for first in range(max(plain - 3, 0), min(plain + 2, mold.pairs)):
        last = np.arange(first + 1, mold.rotary_dim)[:, None]
        keep = 1 - np.clip((index - first) / (last - first), 0, 1)
        kept = (keep == 1) & ((ratio.low > 1 + NOISE) | (ratio.high < 1 - NOISE))
        with np.errstate(divide="ignore", invalid="ignore"):
            least = (ratio.low - NOISE - keep) / (1 - keep)
            most = (ratio.high + NOISE - keep) / (1 - keep)
        least = np.max(least, axis=1, where=keep < 1, initial=0)
        most = np.min(most, axis=1, where=keep < 1, initial=1)
        fits = (least <= most) & ~kept.any(axis=1) & (most > 0)
        for row in np.flatnonzero(fits).tolist():
            with np.errstate(divide="ignore"):
                factors = Range(np.float64(1) / most[row], np.float64(1) / least[row])
            yield first, int(last[row, 0]), factors


def _factors(allowed: Range, setting: _Setting) -> Iterator[float]:
    """Factors in the range, and where that can be, of the amplitude: 0.1*ln f + 1."""
    low, high = max(float(allowed.low), 1.0), min(float(allowed.high), 1e6)
    amplitude = setting.amplitude
    least, most = (math.exp(10 * (min(float(a), 2.0) - 1)) for a in (amplitude.low, amplitude.high))
    if max(low, least) <= min(high, most):
        low, high = max(low, least), min(high, most)
    yield from (f for f in picks(low, high, setting.mold.hints("factor")) if f > 1)


def _whole_lengths(first: int, last: int, theta: float, setting: _Setting) -> list[int]:
    """Original lengths whose ramp is from `first` to `last`.

    first is the floor of the pair that turns `fast` times within the length, last
    the ceiling of the one that turns `slow` times; both are cut off at 0 and d - 1.
    """
    mold, (fast, slow) = setting.mold, setting.betas

    def length(turns: float, pair: int) -> float:
        return float(2 * math.pi * turns * theta ** (pair / mold.pairs))

    low, high = length(slow, last - 1), length(fast, first + 1)
    if first > 0:
        low = max(low, length(fast, first))
    if last < mold.rotary_dim - 1:
        high = min(high, length(slow, last))
    return list(whole_picks(low, high, _hints(mold)))


def _hints(mold: Mold) -> tuple[float | None, ...]:
    return (
        *mold.hints("original_max_position_embeddings"),
        *mold.hints("max_position_embeddings"),
    )
