"""Edges: what the fast and the slow pairs of a banded schedule say, apart from those between.

llama3 and yarn leave the fast pairs as they are and divide the slow ones by a factor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np

from packimport.rope.naming.bounds import Range
from packimport.rope.naming.fits import log_thetas, thetas
from packimport.rope.naming.mold import Fit, Mold
from packimport.rope.naming.simplest import picks

# What float32 steps do to a share: a few roundings of a number up to 8 or so.
NOISE = 2.0**-20


def head_thetas(seen: Range, mold: Mold) -> Iterator[float]:
    """theta from the fast pairs that no scaling touched, else from the slope of the slow ones.

    How far the untouched ones reach is not known: the longest run that agrees,
    and shorter ones, since the first scaled pair may seem to agree.
    """
    tried: set[float] = set()
    allowed = log_thetas(seen, mold.exponents)
    least, most = np.maximum.accumulate(allowed.low), np.minimum.accumulate(allowed.high)
    agreeing = int(np.count_nonzero(least <= most)) if seen.low[0] <= 1 <= seen.high[0] else 0
    runs = [allowed.take(slice(n)) for n in (agreeing, agreeing - 1, agreeing - 2) if n > 0]
    for run in (*runs, _tail_slopes(seen, mold)):
        for theta in thetas(run, mold):
            if theta not in tried and theta > 1:
                tried.add(theta)
                yield theta


def _tail_slopes(seen: Range, mold: Mold) -> Range:
    """ln theta from the last pairs, which are all divided alike: ranges against the last one."""
    known = np.flatnonzero(seen.low > 0)
    if len(known) < 2:
        return Range(np.empty(0), np.empty(0))
    last, others = known[-1], known[:-1][::-1]
    apart = mold.exponents[last] - mold.exponents[others]
    low = (np.log(seen.low[others]) - np.log(seen.high[last])) / apart
    high = (np.log(seen.high[others]) - np.log(seen.low[last])) / apart
    agreeing = np.maximum.accumulate(low) <= np.minimum.accumulate(high)
    run = int(np.count_nonzero(agreeing))
    return Range(low[:run], high[:run])


def tail_factors(ratio: Range, mold: Mold) -> Iterator[float]:
    """The factor from the slow pairs, whose ratio to plain is 1/factor."""
    least = np.maximum.accumulate(ratio.low[::-1])
    most = np.minimum.accumulate(ratio.high[::-1])
    agreeing = int(np.count_nonzero(least <= most))
    tried: set[float] = set()
    for run in (agreeing, agreeing - 1):
        if run < 1 or most[run - 1] <= 0:
            continue
        low = 1 / most[run - 1]
        high = 1 / least[run - 1] if least[run - 1] > 0 else np.inf
        for factor in picks(max(low, 1.0), min(high, 1e6), mold.hints("factor")):
            if factor > 1 and factor not in tried:
                tried.add(factor)
                yield factor


def in_turns(several: Iterable[Iterator[Fit]]) -> Iterator[Fit]:
    """The first of each, then the second of each, and so on."""
    waiting = list(several)
    while waiting:
        alive = []
        for fits in waiting:
            for fit in islice(fits, 1):
                yield fit
                alive.append(fits)
        waiting = alive


def over_plain(seen: Range, theta: float, mold: Mold) -> Range:
    """The ratio of each frequency to the plain one."""
    plain = mold.plain(theta)
    return Range(seen.low / plain, seen.high / plain)


def shares(ratio: Range, factor: float) -> Range:
    """How much of a pair is plain, 1 for fast and 0 for slow ones: (ratio - 1/f)/(1 - 1/f)."""
    base, span = 1 / factor, 1 - 1 / factor
    return Range((ratio.low - base) / span - NOISE, (ratio.high - base) / span + NOISE)
