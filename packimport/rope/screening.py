"""Screening: most entries of a 16-bit table judged by float32, the rest by float64.

numpy's float32 cos and sin take a tenth of the time of the float64 ones. They are
off by at most 4 ulps (measured: 1.5), so a bound tells which entries of a float16 or
bfloat16 table are surely right, which are surely wrong, and which need the exact
value. The outcome is that of float64 alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

# Of an error against float32's value: 4 ulps below 1 (2^-22) for cos and sin, and
# less than 2^-22 for the product with the attention factor and for the subtraction.
SLACK = 2.0**-21

_EXPONENT = np.uint32(0x7F80_0000)
_SIGN_AND_FLOAT16 = np.int32(-0x8000_0000 | 0x0FFF_E000)
# From one entry in so many on it pays to look for pairs that are wrong as a whole.
_FEW = 16
# Rows that are taken as one long one.
_GROUP = 64

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Screened:
    """What float32 tells of one block of a table.

    wrong:    bool [pairs]: pairs with an entry that is surely wrong.
    open:     indices of the entries of the other pairs that need the exact value.
    largest:  indices of the entries one of which has the largest error.
    """

    wrong: NDArray[np.bool_]
    open: tuple[NDArray[np.intp], ...]
    largest: tuple[NDArray[np.intp], ...]


def is_screened(dtype: np.dtype[np.generic]) -> bool:
    """Whether float32 is fine enough for tables of this dtype."""
    return dtype.name in ("float16", "bfloat16")


def screened(
    given: NDArray[np.generic],
    right: NDArray[np.float32],
    angle: NDArray[np.float32],
    attention_factor: float,
) -> Screened:
    """The entries `given` [rows, pairs] against float32's `right`, times the attention factor.

    The tolerance is that of `difference.tolerance`. Near a power of two `right` may
    have another exponent than the exact value: half an ulp of its own is surely
    allowed, and more than two ulps are surely not.
    """
    slack = np.float32(SLACK * max(1.0, attention_factor))
    error = _widened(given)
    error -= right
    np.abs(error, out=error)
    # All of them where one is NaN.
    near = np.flatnonzero(~(error < error.max() - 2 * slack))
    bound = _ulps(right, given.dtype)
    bound *= np.float32(0.5)
    bound -= slack
    # Not `error > bound`: NaN must stay. Of a right table this leaves one in a hundred.
    left = ~(error <= bound)
    wrong: NDArray[np.bool_] = np.zeros(given.shape[1], dtype=np.bool_)
    if np.count_nonzero(left) > left.size // _FEW:
        room = np.float32(angle.max() * 2.0**-21 + 2.0**-22) * np.float32(attention_factor)
        surely = 2 * _ulps(np.full(1, attention_factor, np.float32), given.dtype) + room + slack
        wrong = _column_maxima(error) > surely
        left[:, wrong] = False
    at = np.flatnonzero(left)
    some = _Some(error.ravel()[at], right.ravel()[at], angle.ravel()[at])
    sure, unsure = some.judged(given.dtype, attention_factor)
    column = at % error.shape[1]
    wrong[column[sure]] = True
    unsure &= ~wrong[column]
    return Screened(
        wrong, np.unravel_index(at[unsure], error.shape), np.unravel_index(near, error.shape)
    )


class _Some(NamedTuple):
    """Some entries: their error against float32's value, that value, and their angle."""

    error: Floats
    right: Floats
    angle: Floats

    def judged(
        self, dtype: np.dtype[np.generic], attention_factor: float
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Which are surely wrong, and which are not surely right."""
        slack = np.float32(SLACK * max(1.0, attention_factor))
        ulp = _ulps(self.right, dtype)
        # Rounded, which 2^-24 of its own value is little of the slack.
        room = self.angle * np.float32(2.0**-21) + np.float32(2.0**-22)
        room *= np.float32(attention_factor)
        sure = self.error > 2 * ulp + room + slack
        # NaN must stay.
        return sure, ~(self.error <= np.float32(0.5) * ulp + room - slack)


def _ulps(values: Floats, dtype: np.dtype[np.generic]) -> Floats:
    """An ulp of `dtype` at each value."""
    info = ml_dtypes.finfo(dtype)
    power = (values.view(np.uint32) & _EXPONENT).view(np.float32)
    power *= np.float32(info.eps)
    return np.maximum(power, np.float32(info.smallest_subnormal), out=power)


def _widened(given: NDArray[np.generic]) -> Floats:
    """16-bit floats as float32, in a quarter of `astype`'s time for float16.

    What is no finite float16 becomes 2^16 or more: as wrong as it is, and the largest error,
    which is looked at again.
    """
    if given.dtype.name != "float16":
        return given.astype(np.float32)
    # The sign, exponent and fraction each in its place; float32's exponents start 112 lower.
    raw = given.view(np.int16).astype(np.int32)
    raw <<= 13
    raw &= _SIGN_AND_FLOAT16
    wide = raw.view(np.float32)
    wide *= np.float32(2.0**112)
    return wide


def _column_maxima(error: Floats) -> Floats:
    """The largest entry of each column, float32 [pairs]: numpy is slow along short rows."""
    rows, pairs = error.shape
    group = math.gcd(rows, _GROUP)
    grouped: Floats = error.reshape(-1, group * pairs).max(axis=0).reshape(group, pairs)
    return np.asarray(grouped.max(axis=0))
