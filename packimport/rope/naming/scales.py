"""Scales: declared schedules with every position multiplied."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from packimport.rope.naming.baked import TWO_ULPS, Floats
from packimport.rope.naming.bounds import Range
from packimport.rope.naming.case import Case
from packimport.rope.naming.explanation import with_scale
from packimport.rope.naming.phases import phases, unwrap
from packimport.rope.naming.recovery import recover
from packimport.rope.naming.simplest import picks
from packimport.rope.naming.suspects import Suspect
from packimport.rope.schedule import Rope


def scaled_candidates(case: Case) -> Iterator[Suspect]:
    """The candidates with the scale that the ranges allow.

    A plain or linear one with positions divided is left to the fits: that is
    linear with another factor.
    """
    few = case.sample.doublings()
    rough = unwrap(few, phases(few))
    for suspect in case.suspects:
        rope = suspect.rope
        if rope is None or rope not in case.candidates or not np.isfinite(rough).all():
            continue
        inv_freq = suspect.baked.inv_freq.astype(np.float64)
        if not inv_freq.any():
            continue
        for seen in recover(case.sample, _whole(rough, inv_freq)).ranges:
            for scale in picks(*_scales(seen, inv_freq)):
                if scale != 1 and (scale > 1 or rope.type not in ("default", "linear")):
                    yield _scaled(suspect, rope, scale, case.declared)


def _scaled(suspect: Suspect, rope: Rope, scale: float, declared: Rope | None) -> Suspect:
    return replace(
        suspect,
        label=with_scale(rope, scale, declared),
        baked=replace(suspect.baked, scale=scale),
        mistake="positions-scaled",
        equivalents=(),
    )


def _whole(rough: Floats, inv_freq: Floats) -> Floats:
    """`rough` with whole turns added where the scale, read from the slow pairs, asks for them."""
    turning = np.flatnonzero(inv_freq > 0)
    slow = turning[len(turning) // 2 :]
    # The middle one: np.median's first call imports numpy.ma, which takes 15 ms.
    scale = float(np.sort(rough[slow] / inv_freq[slow])[len(slow) // 2])
    return rough + 2 * np.pi * np.round((inv_freq * scale - rough) / (2 * np.pi))


def _scales(seen: Range, inv_freq: Floats) -> tuple[float, float]:
    """The scales that every pair allows."""
    turning = inv_freq > 0
    low, high = seen.low[turning] / inv_freq[turning], seen.high[turning] / inv_freq[turning]
    return float(low.max()) * (1 - TWO_ULPS), float(high.min()) * (1 + TWO_ULPS)
