"""Screening by float32 changes no outcome: the reference is float64, computed here by numpy."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from packimport.rope.difference import difference, tolerance
from packimport.rope.frequencies import Frequencies
from packimport.rope.screening import SLACK, _column_maxima, _widened, is_screened

ROWS = 131072
PLAIN = (1 / 500000.0 ** (np.arange(64) / 64)).astype(np.float32)
DTYPES = [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]


def angles(inv_freq: NDArray[np.float32], rows: int) -> NDArray[np.float32]:
    return np.multiply.outer(np.arange(rows, dtype=np.float32), inv_freq)


def expected(
    given: NDArray[np.generic],
    exact: NDArray[np.float64],
    angle: NDArray[np.float32],
    factor: float,
) -> tuple[NDArray[np.bool_], float]:
    """The pairs that are wrong and the largest error, by float64 alone."""
    error = np.abs(given.astype(np.float64) - exact)
    allowed = tolerance(exact, angle.astype(np.float64), factor, given.dtype)
    largest = float(error.max())
    return ~(error <= allowed).all(axis=0), np.inf if np.isnan(largest) else largest


def test_what_is_screened() -> None:
    assert [is_screened(np.dtype(name)) for name in (np.float32, np.float64)] == [False, False]
    assert [is_screened(dtype) for dtype in DTYPES] == [True, True]


@pytest.mark.parametrize("function", [np.cos, np.sin])
def test_float32_is_as_near_as_the_slack_says(function: np.ufunc) -> None:
    angle = angles(PLAIN, ROWS)
    for start in range(0, ROWS, 16384):
        block = angle[start : start + 16384]
        off = np.abs(function(block).astype(np.float64) - function(block.astype(np.float64)))
        assert off.max() < SLACK / 2


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("factor", [1.0, 0.3, 1.19])
def test_the_outcome_is_that_of_float64(dtype: np.dtype[np.generic], factor: float) -> None:
    rng = np.random.default_rng(0)
    angle = angles(PLAIN, 3000)
    exact = [function(angle.astype(np.float64)) * factor for function in (np.cos, np.sin)]
    step = float(ml_dtypes.finfo(dtype).eps)
    cos, sin = (
        # Off by about one ulp, now a little less and now a little more: many at the border.
        (
            values * (1 + step * rng.uniform(-1.0, 1.0, values.shape) * (rng.random(64) < 0.5))
        ).astype(dtype)
        for values in exact
    )
    cos[2999, 3] = np.nan
    sin[17, 5] = -sin[17, 5]
    sin[2000, 63] *= 2
    for rows in (slice(0, 2999), slice(0, 3000), slice(0, 16), slice(0, 1)):
        both = [
            expected(given[rows], right[rows], angle[rows], factor)
            for given, right in zip((cos, sin), exact, strict=True)
        ]
        found = difference(cos[rows], sin[rows], Frequencies(PLAIN, factor))
        assert found.wrong_pairs == int((both[0][0] | both[1][0]).sum())
        assert (found.max_abs_cos_error, found.max_abs_sin_error) == (both[0][1], both[1][1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_single_entry_at_the_border(dtype: np.dtype[np.generic]) -> None:
    """Each entry one, two and three ulps off, alone in a table that is right."""
    pairs = np.array([0.37], dtype=np.float32)
    angle = angles(pairs, 200)
    wide = angle.astype(np.float64)
    cos, sin = np.cos(wide).astype(dtype), np.sin(wide).astype(dtype)
    integers = cos.view(np.uint16)
    for row in range(200):
        for ulps in (1, 2, 3):
            moved = integers.copy()
            moved[row] += ulps
            given = moved.view(dtype)
            bad, largest = expected(given, np.cos(wide), angle, 1.0)
            found = difference(given, sin, Frequencies(pairs, 1.0))
            assert found.wrong_pairs == int(bad.sum())
            assert found.max_abs_cos_error == largest


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_16_bit_value_is_widened_or_as_wrong_as_it_is(dtype: np.dtype[np.generic]) -> None:
    given = np.arange(65536, dtype=np.uint32).astype(np.uint16).view(dtype)
    with np.errstate(all="ignore"):
        exact = given.astype(np.float32)
    found = _widened(given)
    finite = np.isfinite(exact)
    assert np.array_equal(found[finite].view(np.uint32), exact[finite].view(np.uint32))
    others = found[~finite]
    with np.errstate(invalid="ignore"):  # ml_dtypes leaves the mark of a signalling NaN behind
        assert (np.isnan(others) | (np.abs(others) >= 65536)).all()


@pytest.mark.parametrize("rows", [1, 7, 64, 1000, 8192])
def test_column_maxima(rows: int) -> None:
    error = np.random.default_rng(rows).random((rows, 33), dtype=np.float32)
    assert np.array_equal(_column_maxima(error), error.max(axis=0))
