"""Phases: a sample as angles, and the rough frequencies that they show."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from packimport.rope.naming.baked import Floats
from packimport.rope.naming.bounds import Range
from packimport.rope.naming.sample import Sample, rounding_ulps, ulp

# What `difference.tolerance` allows besides the ulp.
ANGLE, FLOOR = 2.0**-21, 2.0**-22
# The arc sine bends within the rounding of a short dtype, by less than this.
_CURVED = 1 + 2.0**-7
_TINY = 2.0**-60
# How far a pair may lie from the line through the slow ones.
_STRAIGHT = 2.0**-6


@dataclass(frozen=True, slots=True, eq=False)
class Phases:
    """A sample as angles: phase and its error in radians, [n, pairs]."""

    amplitude: Range
    phase: Floats
    exact_error: Floats
    within_error: Floats


def phases(sample: Sample) -> Phases:
    """The phase of every entry, modulo 2 pi, and how far rounding may have moved it.

    Of a cosine and a sine the smaller one is the finer measure: its rounding
    moves the angle least. The other says which quadrant it is.
    """
    cos, sin = np.abs(sample.cos), np.abs(sample.sin)
    radius = np.hypot(cos, sin)
    cos_ulp, sin_ulp = (ulp(a, sample.dtype) for a in (cos, sin))
    honest = rounding_ulps(sample.dtype)
    off = (cos * cos_ulp + sin * sin_ulp) / np.maximum(radius, _TINY)
    amplitude = _amplitude(radius, honest * off)
    size, doubt = _size(amplitude)
    fine, coarse = np.minimum(cos, sin) / size, np.maximum(cos, sin) / size
    unit = np.where(cos < sin, cos_ulp, sin_ulp) / size
    angle = np.arcsin(np.minimum(fine, 1))
    angle = np.where(cos < sin, np.pi / 2 - angle, angle)
    angle = np.where(sample.cos < 0, np.pi - angle, angle)
    steep = np.maximum(coarse, _TINY)
    return Phases(
        amplitude=amplitude,
        phase=np.copysign(angle, sample.sin),
        exact_error=(honest * unit * _CURVED + doubt * fine) / steep,
        within_error=(2 * unit + FLOOR + doubt * fine) / steep,
    )


def _size(amplitude: Range) -> tuple[float, float]:
    """The attention factor to measure with, and its relative error: 1 wherever that may be."""
    low, high = float(amplitude.low), float(amplitude.high)
    if low <= 1 <= high or not low + high > 0:
        return 1.0, 0.0
    return (low + high) / 2, (high - low) / (high + low)


def _amplitude(radius: Floats, error: Floats) -> Range:
    bounds = Range(np.asarray(np.max(radius - error)), np.asarray(np.min(radius + error)))
    if bounds.empty:
        bounds = Range(np.asarray(radius.min()), np.asarray(radius.max()))
    return bounds.widened(FLOOR)


def unwrap(sample: Sample, seen: Phases) -> Floats:
    """The frequencies from rows 1, 2, 4, ..., [pairs]; relative to row 0's phase where it is there.

    A pair stops at the first row that contradicts the rows before.
    """
    found: Floats = np.full(sample.pairs, np.nan)
    if not len(sample.rows):
        return found
    first = sample.rows[0] == 0
    start = seen.phase[0] if first else np.zeros(sample.pairs)
    start_error = seen.within_error[0] if first else np.zeros(sample.pairs)
    error: Floats = np.full(sample.pairs, np.pi)
    for index, row in enumerate(sample.rows.tolist()):
        if row == 0 or row & (row - 1):
            continue
        phase = seen.phase[index] - start
        if row == 1:
            found = wrap(phase)
        else:
            turns = np.round((found * row - phase) / (2 * np.pi))
            better = (phase + 2 * np.pi * turns) / row
            fits = np.abs(better - found) <= 2 * error + np.abs(found) * ANGLE
            found = np.where(fits, better, found)
            if not fits.any():
                break
        error = (seen.within_error[index] + start_error) / row
    return found


def unaliased(rough: Floats) -> Floats:
    """`rough` with whole turns added to pairs that turn by more than half a turn per row.

    The slow half of the pairs shows where the fast ones belong, where all pairs
    lie on one line in the logarithm. Elsewhere nothing is added.
    """
    index = np.arange(len(rough))
    slow = index[len(rough) // 2 :]
    slow = slow[(rough[slow] > 0) & (rough[slow] < np.pi / 2)]
    if len(slow) < 2:
        return rough
    slope, start = np.polyfit(slow, np.log(rough[slow]), 1)
    expected = np.exp(np.minimum(start + slope * index, 50.0))
    whole = rough + 2 * np.pi * np.round((expected - rough) / (2 * np.pi))
    straight = np.abs(whole - expected) <= _STRAIGHT * expected
    return whole if straight.all() else rough


def wrap(angle: Floats) -> Floats:
    """`angle` in [-pi, pi)."""
    return np.remainder(angle + np.pi, 2 * np.pi) - np.pi
