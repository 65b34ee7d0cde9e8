"""16-bit tables by float32 against those rounded from float64, bit by bit."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from packimport.rope.rounding import ROUND
from packimport.rope.short import is_short, rounded

DTYPES = [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]


def bits(values: np.ndarray) -> np.ndarray:
    return values.view(np.uint16)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("factor", [1.0, 1.1902380714238083, 0.1, 1.3862943611198906, 40000.0])
@pytest.mark.parametrize("function", [np.cos, np.sin])
def test_the_bits_are_those_of_float64(
    dtype: np.dtype[np.generic], factor: float, function: np.ufunc
) -> None:
    inv_freq = (1 / 500000.0 ** (np.arange(64) / 64)).astype(np.float32)
    for start in (0, 4096, 131_072 - 4096, 1_000_000):
        positions = np.arange(start, start + 4096).astype(np.float32)
        angle = np.multiply.outer(positions, inv_freq)
        exact = ROUND[dtype.name](function(angle.astype(np.float64)) * factor)
        assert np.array_equal(bits(rounded(function, angle, factor, dtype)), bits(exact))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("function", [np.cos, np.sin])
def test_angles_whose_value_lies_in_the_middle_of_two(
    dtype: np.dtype[np.generic], function: np.ufunc
) -> None:
    """Where rounding twice would differ from rounding once: next to every middle, and to zero."""
    steps = np.arange(1, 4000) * 2.0**-12
    middles = steps + 2.0**-13 if dtype.name == "float16" else np.arange(1, 500) * 2.0**-9
    inverse = np.arccos if function is np.cos else np.arcsin
    angle = np.concatenate([inverse(middles[middles < 1]), [0.0, np.pi / 2, np.pi, 2**-14, 1e-30]])
    angle = np.concatenate([angle + k * 2 * np.pi for k in (0, 1, 20, 1000)]).astype(np.float32)
    # The neighbours of each as well.
    angle = (angle.view(np.int32)[:, None] + np.arange(-3, 4, dtype=np.int32)).view(np.float32)
    angle = np.abs(np.nan_to_num(angle, posinf=0))
    exact = ROUND[dtype.name](function(angle.astype(np.float64)))
    assert np.array_equal(bits(rounded(function, angle, 1.0, dtype)), bits(exact))


def test_which_dtypes() -> None:
    assert [is_short(np.dtype(x)) for x in (*DTYPES, np.float32, np.float64)] == [True] * 2 + [
        False
    ] * 2
