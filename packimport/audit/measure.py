"""Measurement: the numbers that tell a baked table from the declared one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packimport.graph.site import Waves
from packimport.rope.difference import Difference, difference
from packimport.rope.frequencies import Frequencies, frequencies
from packimport.rope.identify import Identification, identify
from packimport.rope.naming.labels import label
from packimport.rope.naming.others import others as others_of
from packimport.rope.schedule import Rope
from packimport.rope.tables import cos_sin

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
    wrong_frequencies: frequencies beyond the tolerance, where a graph computes with them.
    wrong_factor: of cos and of sin, and the declared one, where these differ.
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
    wrong_frequencies: int = 0
    wrong_factor: tuple[float, float, float] | None = None


def measure(
    cos: NDArray[np.generic],
    sin: NDArray[np.generic],
    declared: Rope | None,
    *,
    others: Sequence[Rope] = (),
    seq_len: int | None = None,
) -> Measurement:
    """The table `cos`, `sin` [rows, pairs] against `declared`.

    seq_len:  length of the calls that it is for, as `frequencies` takes it.
    declared: None where nothing is declared: only `baked_as` is then filled.
    others:   further schedules of the same model, tried when naming the table.
    """
    fits = declared is not None and declared.pairs == cos.shape[1]
    if declared is not None and fits:
        expected = frequencies(declared, seq_len)
        found = difference(cos, sin, expected)
        if found.wrong_pairs == 0:
            # Nothing else to be named, which saves the time of it.
            return _right(declared, found, cos.shape[0])
    candidates = [rope for rope in (declared, *others) if rope is not None]
    named = identify(cos, sin, candidates)
    if declared is None or not fits:
        return Measurement(
            baked_as=named.label if candidates else _proposed(named),
            mistake=named.mistake,
            equivalents=named.equivalents if candidates else _equivalents(named),
            ambiguous=named.ambiguous,
        )
    return Measurement(
        baked_as=_label(named, declared),
        mistake=named.mistake,
        equivalents=named.equivalents,
        ambiguous=named.ambiguous,
        wrong_pairs=found.wrong_pairs,
        max_ratio=_max_ratio(named.frequencies, expected),
        max_abs_cos_error=_finite(found.max_abs_cos_error),
        max_abs_sin_error=_finite(found.max_abs_sin_error),
        angle_error=_angle_errors(named.frequencies, expected, cos.shape[0]),
        first_bad_position=found.first_bad_position,
    )


def measure_waves(
    waves: Waves,
    declared: Rope | None,
    *,
    rows: int,
    others: Sequence[Rope] = (),
    seq_len: int | None = None,
) -> Measurement:
    """Frequencies that a graph computes with, against `declared`.

    rows: positions at which cos and sin are compared and named.
    """
    baked = np.asarray(waves.values, np.float32)
    made = Frequencies(baked, waves.cos_factor)
    cos, sin = (part.astype(np.float32) for part in cos_sin(made, 0, rows))
    sin *= np.float32(waves.sin_factor / waves.cos_factor) if waves.cos_factor else 1
    if declared is None or declared.pairs != len(baked):
        return measure(cos, sin, declared, others=others)
    expected = frequencies(declared, seq_len)
    found = difference(cos, sin, expected)
    wrong = ~np.isclose(baked, expected.inv_freq, rtol=_spread(waves, declared), atol=0)
    factor = expected.attention_factor
    is_scaled = bool(np.allclose([waves.cos_factor, waves.sin_factor], factor, rtol=2.0**-20))
    if is_scaled and not wrong.any():
        return _right(declared, found, rows)
    named = identify(cos, sin, [rope for rope in (declared, *others) if rope is not None])
    exact = baked.astype(np.float64)
    return Measurement(
        baked_as=_label(named, declared),
        mistake=named.mistake,
        equivalents=named.equivalents,
        ambiguous=named.ambiguous,
        wrong_pairs=int(wrong.sum()) if is_scaled else len(baked),
        wrong_frequencies=int(wrong.sum()),
        wrong_factor=None if is_scaled else (waves.cos_factor, waves.sin_factor, factor),
        max_ratio=_max_ratio(exact, expected),
        max_abs_cos_error=_finite(found.max_abs_cos_error),
        max_abs_sin_error=_finite(found.max_abs_sin_error),
        angle_error=_angle_errors(exact, expected, rows),
        first_bad_position=found.first_bad_position,
    )


def _spread(waves: Waves, declared: Rope) -> float:
    """How far, in parts of itself, a right frequency may lie from the declared one.

    Machines differ by 2 ulp, in the bands of llama3 by 18 (facts of torch 2.13 with and
    without AVX2). A shorter dtype rounds by half an ulp of its own.
    """
    machines = 2.0**-18 if declared.type == "llama3" else 2.0**-21
    return machines + {"float16": 2.0**-11, "bfloat16": 2.0**-8}.get(waves.dtype, 0.0)


def _right(declared: Rope, found: Difference, rows: int) -> Measurement:
    return Measurement(
        baked_as=declared.type,
        wrong_pairs=0,
        max_ratio=1.0,
        max_abs_cos_error=found.max_abs_cos_error,
        max_abs_sin_error=found.max_abs_sin_error,
        angle_error=tuple((position, 0.0) for position in _positions(rows)),
    )


def _proposed(named: Identification) -> str:
    """The label of a table of which nothing is declared.

    Many parameters of these types make the same table: the canonical ones are named.
    """
    is_one_of_many = named.rope is not None and named.rope.type in {"llama3", "yarn"}
    return f"{named.label}, among others that fit" if is_one_of_many else named.label


def _equivalents(named: Identification) -> tuple[str, ...]:
    """What else the table of which nothing is declared may be: a few of the others that fit."""
    rope = named.rope
    is_plain = rope is not None and named.label == label(rope, None)
    more = others_of(rope) if rope is not None and is_plain else ()
    return tuple(dict.fromkeys((*named.equivalents, *more)))


def _label(named: Identification, declared: Rope) -> str:
    # Naming looks at some rows, the comparison at all: where only the latter saw a
    # fault, the plain name would be a lie.
    return f"{named.label}, with damaged entries" if named.label == declared.type else named.label


def _finite(error: float) -> float | None:
    return error if math.isfinite(error) else None


def _positions(rows: int) -> list[int]:
    return sorted({p for p in POSITIONS if p < rows} | {rows - 1})


def _max_ratio(found: NDArray[np.float64], expected: Frequencies) -> float | None:
    baked = np.abs(found)
    declared = expected.inv_freq.astype(np.float64)
    if not np.all(np.isfinite(baked)) or np.any((baked == 0) != (declared == 0)):
        return None
    both = baked > 0
    ratios = baked[both] / declared[both]
    return float(np.max(np.maximum(ratios, 1 / ratios), initial=1.0))


def _angle_errors(
    found: NDArray[np.float64], expected: Frequencies, rows: int
) -> tuple[tuple[int, float | None], ...]:
    gap = np.abs(found - expected.inv_freq.astype(np.float64))
    largest = float(np.max(gap, initial=0.0))
    known = bool(np.isfinite(largest))
    return tuple((p, p * largest if known else None) for p in _positions(rows))
