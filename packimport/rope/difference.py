"""Difference: a table against the frequencies that it should have been made from."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from packimport.errors import ScheduleError
from packimport.rope.frequencies import Frequencies
from packimport.rope.parallel import NARROW, WIDE, block_rows, map_rows
from packimport.rope.screening import is_screened, screened
from packimport.rope.tables import angles

# From this angle on, in radians, a position counts as bad.
BAD_ANGLE = 0.1
# A point off by BAD_ANGLE lies at least sin(0.1) = 0.0998 from the right one, so
# one of its coordinates is off by at least 0.0998 / sqrt(2).
_SUSPICIOUS = 0.07

_EXPONENT = np.uint64(0x7FF0_0000_0000_0000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How a table differs from the declared one.

    wrong_pairs:        pairs with an entry beyond `tolerance`.
    max_abs_cos_error:  largest absolute error of a cos; inf where one is NaN.
    max_abs_sin_error:  the same for sin.
    first_bad_position: first row where a pair's angle is off by more than 0.1
                        rad, or is not a number; None if there is none.
    """

    wrong_pairs: int
    max_abs_cos_error: float
    max_abs_sin_error: float
    first_bad_position: int | None


@dataclass(frozen=True, slots=True, eq=False)
class _Block:
    """What one block of rows shows."""

    start: int
    stop: int
    wrong: NDArray[np.bool_]
    cos_error: float
    sin_error: float


def difference(
    cos: NDArray[np.generic], sin: NDArray[np.generic], declared: Frequencies
) -> Difference:
    """Every entry of a table against `declared`, with row 0 at position 0.

    cos, sin: [rows, pairs], each float16, bfloat16, float32 or float64. They
              are read by blocks: beyond them it takes a few MB.

    An entry is right when it lies within `tolerance` of the declared one; NaN
    is wrong. Raises ScheduleError where shape or dtype does not fit.
    """
    pairs = len(declared.inv_freq)
    for key, array in (("cos", cos), ("sin", sin)):
        _check(key, array, (cos.shape[0] if cos.ndim else 0, pairs))

    def compare(start: int, stop: int) -> _Block:
        return _compare(cos[start:stop], sin[start:stop], declared, start, stop)

    rows = cos.shape[0]
    entries = NARROW if is_screened(cos.dtype) else WIDE
    found = list(map_rows(compare, 0, rows, block_rows(pairs, entries)))
    wrong = np.logical_or.reduce([block.wrong for block in found])
    return Difference(
        wrong_pairs=int(wrong.sum()),
        max_abs_cos_error=max(block.cos_error for block in found),
        max_abs_sin_error=max(block.sin_error for block in found),
        first_bad_position=_first_bad(cos, sin, declared, found),
    )


def tolerance(
    exact: NDArray[np.float64],
    angle: NDArray[np.float64],
    attention_factor: float,
    dtype: np.dtype[np.generic],
) -> NDArray[np.float64]:
    """How far an entry may lie from the declared value `exact`: float64, of exact's shape.

    1 ulp of `dtype` at the declared value, plus (|angle| * 2^-21 + 2^-22) times
    the attention factor. The ulp is room for rounding twice, as torch's tables
    are (float32, then a shorter dtype); |angle| * 2^-21 for two ulps of a
    frequency, by which CPUs differ, and for the float32 product; 2^-22 for
    another library's cos. The nearest wrong schedules are hundreds of times
    farther at the end of a table.
    """
    info = ml_dtypes.finfo(dtype)
    power = (exact.view(np.uint64) & _EXPONENT).view(np.float64)
    ulp = np.maximum(power * float(info.eps), float(info.smallest_subnormal))
    return ulp + (angle * 2.0**-21 + 2.0**-22) * attention_factor


def _compare(
    cos: NDArray[np.generic],
    sin: NDArray[np.generic],
    declared: Frequencies,
    start: int,
    stop: int,
) -> _Block:
    angle = angles(declared, start, stop)
    wrong = np.zeros(len(declared.inv_freq), dtype=np.bool_)
    errors = []
    for given, function in ((cos, np.cos), (sin, np.sin)):
        judge = _by_screening if is_screened(given.dtype) else _by_float64
        found, error = judge(given, function, angle, declared.attention_factor)
        wrong |= found
        errors.append(error)
    return _Block(start, stop, wrong, *errors)


def _by_float64(
    given: NDArray[np.generic], function: np.ufunc, angle: NDArray[np.float32], factor: float
) -> tuple[NDArray[np.bool_], float]:
    """The wrong pairs of [rows, pairs] entries, and the largest error."""
    good, error = _judged(given, function, angle, factor)
    return np.asarray(~good.all(axis=0)), _largest(error)


def _by_screening(
    given: NDArray[np.generic], function: np.ufunc, angle: NDArray[np.float32], factor: float
) -> tuple[NDArray[np.bool_], float]:
    """The same, with float64 only where float32 can't tell."""
    right = function(angle)
    if factor != 1:
        right *= np.float32(factor)
    found = screened(given, right, angle, factor)
    wrong = found.wrong
    if found.open[0].size:
        good, _ = _judged(given[found.open], function, angle[found.open], factor)
        wrong[found.open[1][~good]] = True
    _, error = _judged(given[found.largest], function, angle[found.largest], factor)
    return wrong, _largest(error)


def _judged(
    given: NDArray[np.generic], function: np.ufunc, angle: NDArray[np.float32], factor: float
) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """Whether each entry is right, and its error."""
    wide = angle.astype(np.float64)
    exact = function(wide)
    if factor != 1:
        exact *= factor
    error = np.abs(given.astype(np.float64) - exact)
    # Not `error > allowed`: NaN must count.
    return error <= tolerance(exact, wide, factor, given.dtype), error


def _largest(error: NDArray[np.float64]) -> float:
    largest = float(error.max())
    return math.inf if math.isnan(largest) else largest


def _first_bad(
    cos: NDArray[np.generic],
    sin: NDArray[np.generic],
    declared: Frequencies,
    blocks: Iterable[_Block],
) -> int | None:
    """The first row with a pair off by more than BAD_ANGLE, looked for where that can be."""
    limit = _SUSPICIOUS * declared.attention_factor
    for block in blocks:
        if max(block.cos_error, block.sin_error) <= limit:
            continue
        here = slice(block.start, block.stop)
        turned = np.arctan2(sin[here].astype(np.float64), cos[here].astype(np.float64))
        off = turned - angles(declared, block.start, block.stop)
        off = np.abs(np.remainder(off + math.pi, 2 * math.pi) - math.pi)
        bad = ~(off <= BAD_ANGLE).all(axis=1)
        if bad.any():
            return block.start + int(bad.argmax())
    return None


def _check(key: str, array: NDArray[np.generic], shape: tuple[int, int]) -> None:
    if array.shape != shape or not array.size:
        raise ScheduleError(
            key, "a table of another shape", found=array.shape, allowed=f"[rows, {shape[1]}]"
        )
    if array.dtype.name not in ("float16", "bfloat16", "float32", "float64"):
        raise ScheduleError(
            key,
            "no dtype of a table",
            found=array.dtype.name,
            allowed="float16, bfloat16, float32, float64",
        )
