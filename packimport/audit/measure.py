"""Measurement: the numbers that tell a baked table from the declared one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packimport.rope.difference import Difference, difference
from packimport.rope.frequencies import Frequencies, frequencies
from packimport.rope.identify import Identification, identify
from packimport.rope.schedule import Rope

# Where a report states the angle error, besides the last row.
POSITIONS = (128, 1024, 2048)


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """A table against the Rope that its layers declare.

    baked_as:    short label of the schedule that made the table.
    mistake:     id of the known mistake behind it, or None.
    wrong_pairs: pairs with an entry beyond the tolerance; None where widths differ.
    max_ratio:   largest baked/declared frequency ratio, either way (>= 1); None
                 where a frequency is unknown or zero on one side only.
    max_abs_cos_error, max_abs_sin_error: largest absolute error of an entry;
                 None where an entry is not a number.
    angle_error: (position, radians) at `POSITIONS` and at the last row.
    first_bad_position: first row where a pair is off by more than 0.1 rad.
    """

    baked_as: str
    mistake: str | None = None
    equivalents: tuple[str, ...] = ()
    ambiguous: tuple[str, ...] = ()
    wrong_pairs: int | None = None
    max_ratio: float | None = None
    max_abs_cos_error: float | None = None
    max_abs_sin_error: float | None = None
    angle_error: tuple[tuple[int, float | None], ...] = ()
    first_bad_position: int | None = None


def measure(
    cos: NDArray[np.generic],
    sin: NDArray[np.generic],
    declared: Rope | None,
    *,
    others: Sequence[Rope] = (),
) -> Measurement:
    """The table `cos`, `sin` [rows, pairs] against `declared`.

    declared: None where nothing is declared: only `baked_as` is then filled.
    others:   further schedules of the same model, tried when naming the table.
    """
    candidates = [rope for rope in (declared, *others) if rope is not None]
    named = identify(cos, sin, candidates)
    if declared is None or declared.pairs != cos.shape[1]:
        return Measurement(
            baked_as=named.label,
            mistake=named.mistake,
            equivalents=named.equivalents,
            ambiguous=named.ambiguous,
        )
    expected = frequencies(declared)
    found = difference(cos, sin, expected)
    if found.wrong_pairs == 0:
        return _right(declared, found, cos.shape[0])
    return Measurement(
        baked_as=_label(named, declared),
        mistake=named.mistake,
        equivalents=named.equivalents,
        ambiguous=named.ambiguous,
        wrong_pairs=found.wrong_pairs,
        max_ratio=_max_ratio(named, expected),
        max_abs_cos_error=_finite(found.max_abs_cos_error),
        max_abs_sin_error=_finite(found.max_abs_sin_error),
        angle_error=_angle_errors(named, expected, cos.shape[0]),
        first_bad_position=found.first_bad_position,
    )


def _right(declared: Rope, found: Difference, rows: int) -> Measurement:
    return Measurement(
        baked_as=declared.type,
        wrong_pairs=0,
        max_ratio=1.0,
        max_abs_cos_error=found.max_abs_cos_error,
        max_abs_sin_error=found.max_abs_sin_error,
        angle_error=tuple((position, 0.0) for position in _positions(rows)),
    )


def _label(named: Identification, declared: Rope) -> str:
    # Naming looks at some rows, the comparison at all: where only the latter saw a
    # fault, the plain name would be a lie.
    return f"{named.label}, with damaged entries" if named.label == declared.type else named.label


def _finite(error: float) -> float | None:
    return error if math.isfinite(error) else None


def _positions(rows: int) -> list[int]:
    return sorted({p for p in POSITIONS if p < rows} | {rows - 1})


def _max_ratio(named: Identification, expected: Frequencies) -> float | None:
    baked = np.abs(named.frequencies)
    declared = expected.inv_freq.astype(np.float64)
    if not np.all(np.isfinite(baked)) or np.any((baked == 0) != (declared == 0)):
        return None
    both = baked > 0
    ratios = baked[both] / declared[both]
    return float(np.max(np.maximum(ratios, 1 / ratios), initial=1.0))


def _angle_errors(
    named: Identification, expected: Frequencies, rows: int
) -> tuple[tuple[int, float | None], ...]:
    gap = np.abs(named.frequencies - expected.inv_freq.astype(np.float64))
    largest = float(np.max(gap, initial=0.0))
    known = bool(np.isfinite(largest))
    return tuple((p, p * largest if known else None) for p in _positions(rows))
