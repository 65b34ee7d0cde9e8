"""Precision: the dtype that a rotation works in, and the dtypes it accepts.

Half precision is widened to float32 and rounded once at the end, as
onnxruntime's CPU kernels do. float64 stays float64.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from packimport.errors import ScheduleError

Values: TypeAlias = npt.NDArray[np.generic]
Wide: TypeAlias = npt.NDArray[np.floating]

# By name: numpy does not count bfloat16, which ml_dtypes brings, as floating.
FLOATS = ("float16", "bfloat16", "float32", "float64")


def check_floating(key: str, array: Values) -> None:
    """Refuse an array that is not of one of `FLOATS`: ScheduleError(key)."""
    if array.dtype.name not in FLOATS:
        raise ScheduleError(
            key, "the dtype can't be rotated", found=array.dtype.name, allowed=", ".join(FLOATS)
        )


def widen(**arrays: Values) -> tuple[Wide, ...]:
    """The arrays in the dtype to work in: float64 if any of them is, else float32.

    The order is that of the arguments; their names are the keys of the
    ScheduleError that refuses a dtype outside `FLOATS`.
    """
    for key, array in arrays.items():
        check_floating(key, array)
    double = any(array.dtype == np.float64 for array in arrays.values())
    if double:
        return tuple(array.astype(np.float64, copy=False) for array in arrays.values())
    return tuple(array.astype(np.float32, copy=False) for array in arrays.values())
