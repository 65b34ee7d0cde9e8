"""Rounding: float64 to a table's dtype, once, to nearest and ties to even."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import ml_dtypes
import numpy as np
from numpy.typing import DTypeLike, NDArray

from packimport.errors import ScheduleError

# float64 has 52 bits after the point, bfloat16 has 7.
_DROPPED = np.uint64(52 - 7)
_SMALLEST_NORMAL = float(ml_dtypes.finfo(ml_dtypes.bfloat16).smallest_normal)
_SMALLEST = float(ml_dtypes.finfo(ml_dtypes.bfloat16).smallest_subnormal)


def _bfloat16(values: NDArray[np.float64]) -> NDArray[np.generic]:
    """The values as bfloat16; they are finite and far below its largest.

    ml_dtypes goes through float32 and so rounds twice: 1 + 2^-8 + 2^-40 would
    become 1, not 1 + 2^-7.
    """
    bits = np.ascontiguousarray(values).view(np.uint64)
    one = np.uint64(1)
    rounded = bits >> _DROPPED
    rounded &= one
    rounded += bits
    rounded += (one << (_DROPPED - one)) - one
    rounded >>= _DROPPED
    rounded <<= _DROPPED
    result = rounded.view(np.float64)
    small = np.abs(values) < _SMALLEST_NORMAL
    if small.any():
        result[small] = np.rint(values[small] / _SMALLEST) * _SMALLEST
    # Exact from here on: 8 significant bits fit both.
    return result.astype(np.float32).astype(ml_dtypes.bfloat16)


ROUND: Mapping[str, Callable[[NDArray[np.float64]], NDArray[np.generic]]] = MappingProxyType(
    {
        "float64": lambda values: values,
        "float32": lambda values: values.astype(np.float32),
        "float16": lambda values: values.astype(np.float16),
        "bfloat16": _bfloat16,
    }
)


def table_dtype(dtype: DTypeLike) -> np.dtype[np.generic]:
    """`dtype` as numpy's; ScheduleError unless it is one of `ROUND`."""
    try:
        result: np.dtype[np.generic] = np.dtype(dtype)
    except TypeError:
        result = np.dtype(np.void)
    if result.name not in ROUND:
        raise ScheduleError("dtype", "no dtype of a table", found=dtype, allowed=", ".join(ROUND))
    return result
