"""yarn from ranges of frequencies, with any factor and original length."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from packimport.rope.naming.baked import TWO_ULPS
from packimport.rope.naming.edges import head_thetas, in_turns, over_plain, shares, tail_factors
from packimport.rope.naming.mold import Fit, Mold
from packimport.rope.naming.recovery import Range
from packimport.rope.naming.simplest import picks, simplest, whole_picks


def yarn(seen: Range, mold: Mold, amplitude: Range) -> Iterator[Fit]:
    """yarn with any factor and original length, betas 32 and 1 or as a candidate has them."""
    seen = seen.widened(TWO_ULPS)
    betas = dict.fromkeys(
        (r.beta_fast or 32.0, r.beta_slow or 1.0) for r in mold.candidates if r.type == "yarn"
    )
    betas[32.0, 1.0] = None
    yield from in_turns(
        _ramped(theta, factor, share, mold, betas=pair, attention=_attention(amplitude, factor))
        for theta in head_thetas(seen, mold)
        for factor in (
            *tail_factors(over_plain(seen, theta, mold), mold),
            *_amplitude_factors(amplitude, mold),
        )
        for share in [shares(over_plain(seen, theta, mold), factor)]
        for pair in betas
    )


def _ramped(
    theta: float,
    factor: float,
    share: Range,
    mold: Mold,
    *,
    betas: tuple[float, float],
    attention: dict[str, float],
) -> Iterator[Fit]:
    """The fits of one theta, one factor and one pair of betas."""
    fields = dict(attention)
    if betas != (32, 1):
        fields |= {"beta_fast": betas[0], "beta_slow": betas[1]}
    for original, truncate in _originals(share, theta, betas, mold):
        yield from mold.fit(
            "yarn",
            theta,
            factor=factor,
            original_max_position_embeddings=original,
            **fields,
            **({} if truncate else {"truncate": False}),
        )


def _amplitude_factors(amplitude: Range, mold: Mold) -> Iterator[float]:
    """The factor from the amplitude, 0.1*ln f + 1: no pair may be slow enough to show it."""
    low, high = float(amplitude.low), float(amplitude.high)
    if 1 < low < high < 2:
        yield from picks(math.exp(10 * (low - 1)), math.exp(10 * (high - 1)), mold.hints("factor"))


def _attention(amplitude: Range, factor: float) -> dict[str, float]:
    """attention_factor, where the formula's own does not fit the amplitude."""
    low, high = float(amplitude.low), float(amplitude.high)
    if low <= 0.1 * math.log(factor) + 1 <= high or low <= 0:
        return {}
    return {"attention_factor": 1.0 if low <= 1 <= high else simplest(low, high)}


def _originals(
    share: Range, theta: float, betas: tuple[float, float], mold: Mold
) -> Iterator[tuple[int, bool]]:
    """(original length, truncate) whose ramp fits the shares."""
    fast, slow = betas
    hints = (
        *mold.hints("original_max_position_embeddings"),
        *mold.hints("max_position_embeddings"),
    )
    step = math.log(theta) / mold.pairs  # a pair's slope in ln wavelength
    for first, last in _whole_ramps(share, mold):
        # first = floor(pair that turns `fast` times), last = ceil(pair that turns `slow` times)
        low = (
            2
            * math.pi
            * max(
                fast * math.exp(step * first) if first > 0 else 0,
                slow * math.exp(step * (last - 1)) if last < mold.rotary_dim - 1 else slow,
            )
        )
        high = (
            2
            * math.pi
            * min(
                fast * math.exp(step * (first + 1)),
                slow * math.exp(step * last) if last < mold.rotary_dim - 1 else 1e9,
            )
        )
        for original in whole_picks(low, high, hints):
            yield original, True
    width = math.log(fast / slow) / step
    if width <= 0:
        return
    index = np.arange(mold.pairs)
    # 1 - share = (index - first)/width where the pair lies on the ramp
    over, under = share.high < 1, share.low > 0
    most = np.min((index - width * (1 - share.high))[over], initial=np.inf)
    least = np.max((index - width * (1 - share.low))[under], initial=0.0)
    if 0 <= least <= most < mold.rotary_dim:
        turns = 2 * math.pi * fast
        for original in whole_picks(
            turns * math.exp(step * least), turns * math.exp(step * most), hints
        ):
            yield original, False


def _whole_ramps(share: Range, mold: Mold) -> Iterator[tuple[int, int]]:
    """Ramps from one whole pair to another that lie in the shares of all pairs."""
    plain = int(np.argmin(share.high >= 1)) if not (share.high >= 1).all() else mold.pairs
    index = np.arange(mold.pairs)
    for first in range(max(plain - 3, 0), min(plain + 2, mold.pairs)):
        last = np.arange(first + 1, mold.rotary_dim)[:, None]
        expected = 1 - np.clip((index - first) / (last - first), 0, 1)
        fits = (expected >= share.low) & (expected <= share.high)
        for row in np.flatnonzero(fits.all(axis=1))[:4].tolist():
            yield first, int(last[row, 0])
