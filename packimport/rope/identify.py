"""identify: from a table alone, which schedule made it.

The candidates are tried first, then what exporters are known to make of them,
then any plain, linear, proportional, llama3 or yarn schedule. A name is given
only where the named schedule reproduces every entry that is looked at. These
are chosen rows, not all: `difference` compares the whole table.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packimport.errors import ScheduleError
from packimport.rope.naming.case import Case
from packimport.rope.naming.damage import Damage, described, scan, strays
from packimport.rope.naming.distortion import Distortion, undo
from packimport.rope.naming.explanation import Explanation
from packimport.rope.naming.mistakes import MISTAKES, Mistake
from packimport.rope.naming.sample import Rows, Sample
from packimport.rope.naming.stages import known, later, mostly
from packimport.rope.precision import FLOATS
from packimport.rope.schedule import Rope

__all__ = ["MISTAKES", "Identification", "Mistake", "identify"]

UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Identification:
    """Which schedule made a table.

    label:            short: the schedule's type, the fields in which it differs
                      from the first candidate, and what was done to the table.
                      The bare type of the first candidate only if nothing differs.
    rope:             the schedule; None where no Rope says it.
    position_scale:   every position was multiplied by it.
    mistake:          a key of `MISTAKES`, or None.
    equivalents:      labels of other schedules that coincide with it exactly.
    ambiguous:        labels of all the schedules that fit what the dtype shows,
                      where there are several; `label` then joins them.
    frequencies:      float64 [pairs], radians per row, negative where the rotation
                      runs backwards. Of the schedule where it is known, else
                      recovered, modulo 2 pi; NaN where no linear angle fits.
    attention_factor: what multiplies cos and sin.
    """

    label: str
    rope: Rope | None
    position_scale: float
    mistake: str | None
    equivalents: tuple[str, ...]
    ambiguous: tuple[str, ...]
    frequencies: NDArray[np.float64]
    attention_factor: float


def identify(
    cos: NDArray[np.generic], sin: NDArray[np.generic], candidates: Sequence[Rope] = ()
) -> Identification:
    """Name the schedule behind the table cos, sin [rows, pairs].

    cos, sin:   float32, float16, bfloat16 (that of ml_dtypes) or float64; row r
                is position r.
    candidates: what is declared; the first counts as the declaration of this
                table, and labels tell the difference from it.

    About 300 rows are compared in full, and of all others the first pair; NaN
    and infinity are found anywhere.

    Raises ScheduleError for an empty table, another shape or dtype.
    """
    _check(cos, sin)
    damage = scan(cos, sin)
    case = _case(cos, sin, tuple(candidates), damage)
    explanation, distortions = _explain(case)
    partly = mostly(case) if explanation is None else None
    if partly is not None:
        explanation = partly[0]
    if explanation is not None and explanation.baked is not None:
        damage = strays(cos, sin, explanation.baked, damage)
    if partly is not None:
        damage = described(damage, partly[1])
    explanation = explanation or _unknown(case)
    texts = (explanation.label, *(d.text for d in distortions), damage.text)
    return Identification(
        label=", ".join(filter(None, texts)),
        rope=explanation.rope,
        position_scale=explanation.scale,
        mistake=explanation.mistake or damage.mistake,
        equivalents=explanation.equivalents,
        ambiguous=explanation.ambiguous,
        frequencies=explanation.frequencies,
        attention_factor=explanation.attention_factor,
    )


def _case(
    cos: NDArray[np.generic],
    sin: NDArray[np.generic],
    candidates: tuple[Rope, ...],
    damage: Damage,
) -> Case:
    def take(rows: Rows) -> Sample:
        return Sample.take(cos, sin, rows[damage.usable[rows]])

    return Case.of(take, candidates, cos.shape[1], cos.shape[0])


def _explain(case: Case) -> tuple[Explanation | None, tuple[Distortion, ...]]:
    """What explains the table as it is, else once its distortions are undone, and these."""
    if not len(case.sample.rows):
        return None, ()
    explanation = known(case)
    if explanation is not None:
        return explanation, ()
    distortions = undo(case.sample)[1]
    if not distortions:
        return later(case), ()
    upright = case.upright()
    explanation = known(upright) or later(upright)
    if explanation is None:
        return None, ()
    return explanation.distorted(distortions), distortions


def _unknown(case: Case) -> Explanation:
    amplitude = case.recovery.amplitude
    return Explanation(
        label=UNKNOWN,
        rope=None,
        frequencies=case.recovery.frequencies,
        attention_factor=float(amplitude.low + amplitude.high) / 2,
    )


def _check(cos: NDArray[np.generic], sin: NDArray[np.generic]) -> None:
    for key, array in (("cos", cos), ("sin", sin)):
        if array.ndim != 2 or not array.size or array.shape != cos.shape:
            raise ScheduleError(
                key,
                "no table",
                found=array.shape,
                allowed="[rows, pairs], the same for cos and sin",
            )
        if array.dtype.name not in FLOATS or array.dtype != cos.dtype:
            raise ScheduleError(
                key,
                "no dtype of a table",
                found=array.dtype.name,
                allowed=f"{', '.join(FLOATS)}, the same for cos and sin",
            )
