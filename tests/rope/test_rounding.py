"""Rounding from float64, once. The reference is exact arithmetic in fractions."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packimport.errors import ScheduleError
from packimport.rope.rounding import ROUND, table_dtype

# Significant bits, and the exponent of the smallest subnormal: IEEE 754 and bfloat16.
FORMATS = {"float32": (24, -149), "float16": (11, -24), "bfloat16": (8, -133)}


def nearest(value: float, dtype: str) -> float:
    """`value` rounded to nearest, ties to even, as a fraction would be."""
    bits, least = FORMATS[dtype]
    exact = Fraction(value)
    if exact == 0:
        return 0.0
    exponent = np.frexp(value)[1]
    step = Fraction(2) ** max(int(exponent) - bits, least)
    # round() of a Fraction takes ties to even.
    return float(round(exact / step) * step)


TIES = [
    1 + 2.0**-8,
    1 + 3 * 2.0**-8,
    1 + 2.0**-8 + 2.0**-40,
    1 + 2.0**-8 - 2.0**-40,
    1 + 2.0**-11,
    1 + 2.0**-11 + 2.0**-40,
    1 + 2.0**-11 - 2.0**-40,
    1 + 2.0**-24 + 2.0**-50,
    1 - 2.0**-9,
    0.0,
    1.0,
    2.0**-126,
    2.0**-126 - 2.0**-134,
    2.0**-134,
    2.0**-134 + 2.0**-170,
    3 * 2.0**-134,
    2.0**-24,
    2.0**-25,
    2.0**-25 + 2.0**-60,
    1e-300,
]


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("sign", [1, -1])
def test_ties(dtype: str, sign: int) -> None:
    values = sign * np.array(TIES)
    found = ROUND[dtype](values)
    assert found.dtype.name == dtype
    expected = [nearest(float(value), dtype) for value in values]
    assert found.astype(np.float64).tolist() == expected


@pytest.mark.parametrize("dtype", FORMATS)
@given(
    value=st.floats(1e-60, 4) | st.floats(-4, -1e-60),
    nudge=st.integers(-2, 2),
    bits=st.sampled_from([8, 11, 24]),
)
def test_near_ties(dtype: str, value: float, nudge: int, bits: int) -> None:
    # Halfway between two short numbers, and float64's neighbours of that.
    scale = 2.0 ** (bits - int(np.frexp(value)[1]) + 1)
    middle = (np.floor(value * scale) + 0.5) / scale
    near = middle + nudge * np.spacing(middle)
    found = ROUND[dtype](np.array([near, value]))
    assert found.astype(np.float64).tolist() == [nearest(float(x), dtype) for x in (near, value)]


def test_a_plain_cast_to_bfloat16_would_round_twice() -> None:
    # ml_dtypes 0.6: this is why ROUND has a function of its own.
    value = np.array([1 + 2.0**-8 + 2.0**-40])
    assert ROUND["bfloat16"](value).astype(np.float64) == 1 + 2.0**-7
    assert value.astype(np.float32).astype(ml_dtypes.bfloat16).astype(np.float64) == 1


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_names_and_dtypes(dtype: str) -> None:
    assert table_dtype(dtype).name == dtype
    assert table_dtype(table_dtype(dtype)) == table_dtype(dtype)


@pytest.mark.parametrize("dtype", ["int32", np.int8, "complex64", "float8_e4m3fn", "half a byte"])
def test_other_dtypes(dtype: object) -> None:
    with pytest.raises(ScheduleError) as error:
        table_dtype(dtype)
    assert error.value.key == "dtype"
