"""Powers of theta, rounded as torch rounds them: what every schedule starts from."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Float32s: TypeAlias = NDArray[np.float32]

FLOAT32_MAX = float(np.finfo(np.float32).max)


def powers(theta: float, count: int, dim: int) -> Float32s:
    """theta^(2i/dim) for i below `count`: float32 [count].

    dim is the divisor of the exponents: the rotary dimension, or for a
    proportional schedule the size of the whole head.

    torch 2.13 at default CPU capability calls the C library's powf, one number
    at a time. numpy does so for scalars, while its loop over arrays has a pow
    of its own. To round float64's power instead would be 1 ulp off in 66 of
    113064 entries (glibc 2.36): powf is not rounded correctly in each case.
    """
    exponents = np.arange(0, 2 * count, 2).astype(np.float32) / np.float32(dim)
    base = np.float32(theta)
    return np.array([base**exponent for exponent in exponents], dtype=np.float32)


def inverse_powers(theta: float, count: int, dim: int) -> Float32s:
    """The float32 reciprocals of `powers`: the plain frequencies, [count]."""
    return np.float32(1) / powers(theta, count, dim)
