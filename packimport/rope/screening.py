"""Screening: most entries of a 16-bit table judged by float32, the rest by float64.

numpy's float32 cos and sin take a tenth of the time of the float64 ones. They are
off by at most 4 ulps (measured: 1.5), so a bound tells which entries of a float16 or
bfloat16 table are surely right, which are surely wrong, and which need the exact
value. The outcome is that of float64 alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

# Of an error against float32's value: 4 ulps below 1 (2^-22) for cos and sin, and
# less than 2^-22 for the product with the attention factor and for the subtraction.
SLACK = 2.0**-21

_EXPONENT = np.uint32(0x7F80_0000)


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
    info = ml_dtypes.finfo(given.dtype)
    factor = np.float32(attention_factor)
    slack = np.float32(SLACK * max(1.0, attention_factor))
    error = np.abs(given.astype(np.float32) - right)
    ulp = (right.view(np.uint32) & _EXPONENT).view(np.float32)
    ulp *= np.float32(info.eps)
    np.maximum(ulp, np.float32(info.smallest_subnormal), out=ulp)
    # Rounded, which 2^-24 of its own value is little of the slack.
    room = (angle * np.float32(2.0**-21) + np.float32(2.0**-22)) * factor
    allowed = np.float32(0.5) * ulp + room - slack
    # Not `error > allowed`: NaN must stay open.
    doubtful = ~(error <= allowed)
    wrong = np.zeros(given.shape[1], dtype=np.bool_)
    if doubtful.any():
        wrong = (error > 2 * ulp + room + slack).any(axis=0)
        doubtful[:, wrong] = False
    largest = error.max()
    # All of them where one is NaN.
    near = ~(error < largest - 2 * slack)
    return Screened(wrong, _indices(doubtful), _indices(near))


def _indices(mask: NDArray[np.bool_]) -> tuple[NDArray[np.intp], ...]:
    """np.nonzero, which is slow for more dimensions than one."""
    return np.unravel_index(np.flatnonzero(mask), mask.shape)
