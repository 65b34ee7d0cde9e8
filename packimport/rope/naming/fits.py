"""Fits: plain, linear and proportional schedules, and scaled positions, from ranges."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from packimport.rope.naming.baked import TWO_ULPS, Floats
from packimport.rope.naming.bounds import Range
from packimport.rope.naming.mold import Fit, Mold
from packimport.rope.naming.simplest import picks


def plain(seen: Range, mold: Mold) -> Iterator[Fit]:
    """Plain with any theta."""
    seen = seen.widened(TWO_ULPS)
    if seen.low[0] <= 1 <= seen.high[0]:
        for theta in thetas(log_thetas(seen, mold.exponents), mold):
            yield from mold.fit("default", theta)


def scaled(seen: Range, mold: Mold) -> Iterator[Fit]:
    """Plain with every position multiplied: below 1 that is linear, 1/scale its factor."""
    seen = seen.widened(TWO_ULPS)
    low, high = float(seen.low[0]), float(seen.high[0])
    if low <= 1 <= high or low <= 0:
        return
    if high < 1:
        for factor in picks(1 / high, 1 / low, mold.hints("factor")):
            for theta in _slower(seen, 1 / factor, mold):
                yield from mold.fit("linear", theta, factor=factor)
    else:
        for scale in picks(low, high):
            for theta in _slower(seen, scale, mold):
                yield from mold.fit("default", theta, scale)


def proportional(seen: Range, mold: Mold) -> Iterator[Fit]:
    """Plain frequencies, then zeros."""
    zero = (seen.low <= 0) & (seen.high >= 0)
    turning = mold.pairs - int(np.argmin(zero[::-1])) if not zero.all() else 0
    if not 2 <= turning < mold.pairs or not (seen.low[:turning] > 0).all():
        return
    part = turning / mold.pairs
    if int(part * mold.rotary_dim // 2) != turning:
        part = math.nextafter(part, 1)
    first = seen.take(slice(turning)).widened(TWO_ULPS)
    exponents = mold.exponents[:turning]
    for factor in picks(1 / first.high[0], 1 / first.low[0], (1.0, *mold.hints("factor"))):
        divided = Range(first.low * factor, first.high * factor)
        fields = {"factor": factor} if factor != 1 else {}
        for theta in thetas(log_thetas(divided, exponents), mold):
            yield from mold.fit("proportional", theta, partial_rotary_factor=part, **fields)


def _slower(seen: Range, scale: float, mold: Mold) -> Iterator[float]:
    divided = Range(seen.low / scale, seen.high / scale)
    yield from thetas(log_thetas(divided, mold.exponents), mold)


def log_thetas(seen: Range, exponents: Floats) -> Range:
    """The range of ln theta that each pair but the first allows: [pairs - 1]."""
    low, high, exponents = seen.low[1:], seen.high[1:], exponents[1:]
    with np.errstate(divide="ignore", invalid="ignore"):
        most = np.where(low > 0, -np.log(low) / exponents, np.inf)
        least = np.where(high > 0, -np.log(high) / exponents, np.inf)
    return Range(least, most)


def thetas(allowed: Range, mold: Mold) -> Iterator[float]:
    """Values of theta in every one of the ranges of its logarithm, the likeliest first."""
    if not len(allowed.low):
        return
    low, high = float(allowed.low.max()), float(allowed.high.min())
    if -80 < low <= high < 80:
        yield from picks(math.exp(low), math.exp(high), mold.hints("theta"))
