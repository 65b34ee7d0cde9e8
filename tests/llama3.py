"""llama3 frequencies by the formula of Llama 3.1's release, in float64, for tests.

Source: `apply_scaling` of meta-llama/llama-models (models/llama3/model.py), the same rule
as transformers' `_compute_llama3_parameters`. Nothing here comes from packimport.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray


def llama3(
    pairs: int,
    theta: float,
    factor: float,
    low: float,
    high: float,
    original: float,
) -> NDArray[np.float64]:
    """inv_freq, float64 [pairs]."""
    plain = theta ** -(np.arange(pairs) / pairs)
    wavelength = 2 * math.pi / plain
    smooth = (original / wavelength - low) / (high - low)
    mixed = (1 - smooth) * plain / factor + smooth * plain
    scaled = np.where(wavelength > original / low, plain / factor, mixed)
    return np.where(wavelength < original / high, plain, scaled)


def tables_of(inv_freq: NDArray[np.float64], rows: int) -> tuple[NDArray[np.float64], ...]:
    """cos and sin, float64 [rows, pairs], of float32 angles as engines compute them."""
    positions = np.arange(rows, dtype=np.float32)
    angles = np.outer(positions, inv_freq.astype(np.float32)).astype(np.float64)
    return np.cos(angles), np.sin(angles)
