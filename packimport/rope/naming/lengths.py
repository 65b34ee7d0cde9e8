"""Lengths: the call for which a dynamic base was baked in."""

from __future__ import annotations

import math
from dataclasses import replace

from packimport.rope.frequencies import frequencies
from packimport.rope.naming.baked import TWO_ULPS, Baked
from packimport.rope.naming.case import Case
from packimport.rope.naming.fits import log_thetas
from packimport.rope.naming.sample import Match
from packimport.rope.naming.simplest import cost, whole_picks
from packimport.rope.naming.suspects import Suspect
from packimport.rope.schedule import Rope


def at_length(case: Case, suspect: Suspect) -> Suspect | None:
    """`suspect`, a plain schedule, as a dynamic candidate at a length that gives its theta.

    Any larger theta is that of some length: the length counts only where it is
    at least as simple a number as theta.
    """
    rope = suspect.rope
    if rope is None or rope.type != "default" or suspect.baked.scale != 1:
        return None
    for candidate in case.candidates:
        if candidate.type != "dynamic" or candidate.alpha is not None:
            continue
        if candidate.pairs != case.sample.pairs or rope.theta <= candidate.theta:
            continue
        for length in _lengths(case, candidate):
            baked = Baked.of(frequencies(candidate, length))
            if cost(length) <= cost(rope.theta) and case.sample.match(baked) != Match.NONE:
                return replace(
                    suspect,
                    label=f"dynamic at length {length}",
                    baked=baked,
                    mistake="dynamic-baked",
                    equivalents=(suspect.label,),
                )
    return None


def _lengths(case: Case, rope: Rope) -> list[int]:
    """The lengths above the longest plain one whose base lies in the range of theta."""
    assert rope.factor is not None
    assert rope.max_position_embeddings is not None
    allowed = log_thetas(case.recovery.ranges[0].widened(TWO_ULPS), case.mold.exponents)
    shrink = (rope.rotary_dim - 2) / rope.rotary_dim
    factor, longest = rope.factor, rope.max_position_embeddings

    def length(log_theta: float) -> float:
        # base = theta * (factor*s/longest - (factor - 1))^(d/(d-2)), solved for s
        growth = math.exp((log_theta - math.log(rope.theta)) * shrink)
        return longest / factor * (growth + factor - 1)

    low, high = float(allowed.low.max()), float(allowed.high.min())
    if not low <= high:
        return []
    return [n for n in whole_picks(length(low), length(high), (case.rows,)) if n > longest]
