"""Distortion: what an exporter may do to a finished table. Found, and undone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from packimport.rope.naming.baked import Floats
from packimport.rope.naming.phases import phases, unwrap
from packimport.rope.naming.sample import Sample

# A frequency whose error is above this share of it says nothing of a shift.
_MEANINGFUL = 0.2


@dataclass(frozen=True, slots=True)
class Distortion:
    """One thing done to a table.

    text:    for a label.
    mistake: its id in `mistakes.MISTAKES`.
    turns:   1, or -1 where the stored angle runs backwards.
    """

    text: str
    mistake: str
    turns: int = 1


def undo(sample: Sample) -> tuple[Sample, tuple[Distortion, ...]]:
    """`sample` as it was before the distortions that it shows, and these."""
    found = []
    for step in (_swapped, _negated, _shifted):
        result = step(sample)
        if result is not None:
            sample, distortion = result
            found.append(distortion)
    return sample, tuple(found)


Step = Callable[[Sample], "tuple[Sample, Distortion] | None"]


def _swapped(sample: Sample) -> tuple[Sample, Distortion] | None:
    """Row 0 is cos 0 and sin 1 for every pair."""
    if not len(sample.rows) or sample.rows[0] != 0:
        return None
    cos, sin = np.abs(sample.cos[0]), np.abs(sample.sin[0])
    if not (cos < sin * 2.0**-6).all():
        return None
    return replace(sample, cos=sample.sin, sin=sample.cos), Distortion(
        "cos and sin swapped", "cos-sin-swapped", turns=-1
    )


def _negated(sample: Sample) -> tuple[Sample, Distortion] | None:
    """Every slow pair turns backwards. A fast one may seem to: row 1 is beyond half a turn."""
    few = sample.doublings()
    seen = phases(few)
    rough = unwrap(few, seen)
    slow = rough[-(-sample.pairs // 2) :] if sample.pairs > 1 else rough
    slow = slow[np.abs(slow) > _least(sample, seen.within_error)]
    if not len(slow) or not (slow < 0).all():
        return None
    return replace(sample, sin=-sample.sin), Distortion("sin negated", "sin-negated", turns=-1)


def _least(sample: Sample, error: Floats) -> float:
    """The smallest frequency that the last row can tell from zero."""
    last = float(sample.rows[-1])
    return float(np.min(error[-1])) / last if last else np.inf


def _shifted(sample: Sample) -> tuple[Sample, Distortion] | None:
    """Row 0 has an angle: row r holds position r + k."""
    if not len(sample.rows) or sample.rows[0] != 0:
        return None
    few = sample.doublings()
    seen = phases(few)
    start, start_error = seen.phase[0], seen.within_error[0]
    if (np.abs(start) <= start_error).all():
        return None
    rough = unwrap(few, seen)
    last = float(sample.rows[-1])
    error = (seen.within_error[-1] + start_error) / last if last else np.full_like(rough, np.inf)
    shift = _shift(rough, error, start, start_error)
    if shift is None:
        return None
    text = f"rows shifted by {shift} position{'s' if abs(shift) != 1 else ''}"
    return replace(sample, positions=sample.positions + shift), Distortion(text, "rows-shifted")


def _shift(rough: Floats, error: Floats, start: Floats, start_error: Floats) -> int | None:
    """k such that k * frequency is row 0's phase for every pair, modulo 2 pi.

    The slowest pair gives k roughly; each faster one then makes it more precise.
    """
    usable = np.flatnonzero(np.abs(rough) * _MEANINGFUL > error)
    shift, doubt = 0.0, np.inf
    for pair in usable[np.argsort(np.abs(rough[usable]))]:
        frequency = rough[pair]
        turns = 0.0
        if np.isfinite(doubt):
            if doubt * abs(frequency) > np.pi / 2:
                continue
            turns = np.round((shift * frequency - start[pair]) / (2 * np.pi))
        better = (start[pair] + 2 * np.pi * turns) / frequency
        better_doubt = (start_error[pair] + abs(better) * error[pair]) / abs(frequency)
        if better_doubt < doubt:
            shift, doubt = better, better_doubt
    whole = round(shift)
    return whole if whole and abs(shift - whole) < 0.25 else None
