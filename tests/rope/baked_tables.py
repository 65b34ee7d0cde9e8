"""Tables as exporters bake them, right and wrong, written from the formulas alone.

Nothing here uses the code under test, but for the Rope record. Formulas: RoFormer
(arXiv 2104.09864), Position Interpolation (2306.15595), YaRN (2309.00071),
LongRoPE (2402.13753), and transformers 5.24.0 for llama3, dynamic and the order
of the float32 steps.
"""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from packimport.rope.schedule import Rope

DTYPES = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
}
Float32s = NDArray[np.float32]
one = np.float32(1)


def rope(kind: str, d: int, theta: float, **fields: object) -> Rope:
    """A Rope that rotates the whole head."""
    return Rope(type=kind, theta=theta, head_dim=d, rotary_dim=d, **fields)


def powers(d: int, theta: float) -> Float32s:
    exponents = np.arange(0, d, 2, dtype=np.float32) / np.float32(d)
    return (float(np.float32(theta)) ** exponents.astype(np.float64)).astype(np.float32)


def plain(d: int, theta: float) -> Float32s:
    return one / powers(d, theta)


def linear(d: int, theta: float, factor: float) -> Float32s:
    return plain(d, theta) / np.float32(factor)


def llama3(
    d: int, theta: float, factor: float, original: int, *, low: float = 1, high: float = 4
) -> Float32s:
    fast = plain(d, theta)
    wavelength = (one / fast) * np.float32(2 * math.pi)
    slow = np.where(wavelength > original / low, fast / np.float32(factor), fast)
    share = (one / wavelength * np.float32(original) - np.float32(low)) / np.float32(high - low)
    blend = (one - share) * slow / np.float32(factor) + share * slow
    between = (wavelength >= original / high) & (wavelength <= original / low)
    return np.where(between, blend, slow).astype(np.float32)


def yarn_range(
    d: int, theta: float, original: int, fast: float = 32, slow: float = 1, *, truncate: bool = True
) -> tuple[float, float]:
    low, high = (
        d * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))
        for turns in (fast, slow)
    )
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, d - 1)
    return low, high + 0.001 if low == high else high


def yarn(d: int, theta: float, factor: float, original: int, *, truncate: bool = True) -> Float32s:
    low, high = yarn_range(d, theta, original, truncate=truncate)
    ramp = np.clip(
        (np.arange(d // 2, dtype=np.float32) - np.float32(low)) / np.float32(high - low), 0, 1
    )
    keep = one - ramp
    power = powers(d, theta)
    return one / (np.float32(factor) * power) * (one - keep) + one / power * keep


def yarn_attention(factor: float) -> float:
    return 0.1 * math.log(factor) + 1


def yarn_upside_down(d: int, theta: float, factor: float, longest: int) -> Float32s:
    """What onnxruntime-genai 0.11.2's builder.py computes for yarn."""
    rising = one / plain(d, theta)
    low, high = yarn_range(d, theta, longest, truncate=False)
    ramp = (np.arange(d // 2) - low) / (high - low)
    keep = (1 - np.clip(ramp, 0, 1)).astype(np.float32)
    return rising / np.float32(factor) * (one - keep) + rising * keep


def longrope(d: int, theta: float, divisors: tuple[float, ...]) -> Float32s:
    return one / (np.array(divisors, dtype=np.float32) * powers(d, theta))


def longrope_attention(longest: int, original: int) -> float:
    return math.sqrt(1 + math.log(longest / original) / math.log(original))


def dynamic(d: int, theta: float, factor: float, longest: int, length: int) -> Float32s:
    growth = factor * max(length, longest) / longest - (factor - 1)
    return plain(d, theta * growth ** (d / (d - 2)))


def proportional(d: int, theta: float, turning: int) -> Float32s:
    result = np.zeros(d // 2, dtype=np.float32)
    result[:turning] = plain(d, theta)[:turning]
    return result


def shorten(values: Float32s, dtype: str) -> Float32s:
    with np.errstate(over="ignore"):
        return values.astype(DTYPES[dtype]).astype(np.float32)


def cos_sin(
    angles: Float32s, dtype: str, attention: float = 1.0
) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    """float32 cos and sin of float32 angles, as models compute them, then shortened."""
    target = DTYPES[dtype]
    wide = angles.astype(np.float64)
    with np.errstate(invalid="ignore"):
        entries = (f(wide).astype(np.float32) * np.float32(attention) for f in (np.cos, np.sin))
        cos, sin = (e.astype(target) for e in entries)
    return cos, sin


def table(
    inv_freq: Float32s,
    rows: int,
    dtype: str = "float32",
    *,
    attention: float = 1.0,
    scale: float = 1.0,
    start: int = 0,
) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    """cos and sin [rows, pairs], position start + r in row r, times `scale`."""
    positions = ((np.arange(rows) + start) * scale).astype(np.float32)
    return cos_sin(np.outer(positions, inv_freq), dtype, attention)
