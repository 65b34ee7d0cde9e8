"""Recovery: the frequencies that a sample allows, pair by pair, with their bounds."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from packimport.rope.naming.baked import Floats
from packimport.rope.naming.bounds import Range
from packimport.rope.naming.phases import ANGLE, phases, unaliased, unwrap, wrap
from packimport.rope.naming.sample import Sample

# The float32 product of position and frequency, and of position and scale.
_PRODUCT = 2.0**-23
# An amplitude of which nothing is known.
_ANY = Range(np.asarray(0.0), np.asarray(np.inf))


@dataclass(frozen=True, slots=True, eq=False)
class Recovery:
    """What a sample says about the schedule behind it.

    frequencies: float64 [pairs], radians per position, modulo 2 pi: the middle
                 of the range; NaN where the rows follow no linear angle.
    exact:       the frequencies if every entry was rounded once.
    within:      the frequencies within the tolerance of `difference`; empty for
                 a pair whose rows follow no linear angle.
    amplitude:   bounds of the attention factor, two 0-d arrays.
    """

    frequencies: Floats
    exact: Range
    within: Range
    amplitude: Range

    @property
    def linear(self) -> bool:
        """Whether every pair's angle is proportional to the position."""
        return not self.within.empty

    @property
    def ranges(self) -> tuple[Range, ...]:
        """The ranges to fit schedules to, the narrower first; none where not linear."""
        return tuple(r for r in (self.exact, self.within) if not r.empty)


def recover(sample: Sample, around: Floats | None = None) -> Recovery:
    """The ranges of frequency and amplitude that `sample` allows.

    around: the frequencies where they are known roughly. Else row 1 gives each
    modulo 2 pi, and rows 2, 4, 8, ... each double its precision, since the
    error of one is far below half a turn of the next. All other rows then
    narrow the range.
    """
    turning = sample.positions > 0
    if not turning.any():
        nothing = np.full(sample.pairs, np.nan)
        return Recovery(nothing, Range(nothing, nothing), Range(nothing, nothing), _ANY)
    seen = phases(sample)
    rough = unaliased(unwrap(sample, seen)) if around is None else around
    at = sample.positions[turning][:, None]
    off = wrap(seen.phase[turning] - rough * at)
    product = np.abs(rough) * at
    exact = _bounds(rough, at, off, seen.exact_error[turning] + product * _PRODUCT)
    within = _bounds(rough, at, off, seen.within_error[turning] + product * ANGLE * math.sqrt(2))
    middle = np.where(exact.low <= exact.high, exact.low + exact.high, within.low + within.high) / 2
    return Recovery(
        frequencies=np.where(within.low <= within.high, middle, np.nan),
        exact=exact,
        within=within,
        amplitude=seen.amplitude,
    )


def _bounds(rough: Floats, at: Floats, off: Floats, error: Floats) -> Range:
    return Range(
        rough + np.max((off - error) / at, axis=0), rough + np.min((off + error) / at, axis=0)
    )
