"""Norm: RMS normalisation, alone or together with the rotation that follows it.

DeepSeek V4 normalises whole heads of 512 entries and rotates the last 64 of
them: q without a weight, k and the compressed entries with one.
Source: DeepseekV4RMSNorm, DeepseekV4UnweightedRMSNorm and DeepseekV4Attention
of transformers 5.24.0, models/deepseek_v4.
"""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from packimport.errors import ScheduleError
from packimport.rope.precision import Values, Wide, widen
from packimport.rope.rotation import rotate

Scalar = TypeVar("Scalar", bound=np.generic)


def rms_norm(
    x: npt.NDArray[Scalar], weight: Values | None, *, epsilon: float
) -> npt.NDArray[Scalar]:
    """weight · x / sqrt(mean(x²) + epsilon), the mean over the last axis.

    x:       [..., width].
    weight:  [width], or None for a norm without one.
    epsilon: above 0; `rms_norm_eps` in configs.

    float16, bfloat16, float32 or float64; computed in float32, or float64 where
    an input is, the mean always in float64; rounded once to x's dtype.
    ScheduleError names the argument that does not fit.
    """
    return _normalised(x, weight, epsilon).astype(x.dtype)


def rms_norm_rotate(
    x: npt.NDArray[Scalar],
    weight: Values | None,
    cos: Values,
    sin: Values,
    *,
    epsilon: float,
    interleaved: bool = False,
    trailing: bool = False,
) -> npt.NDArray[Scalar]:
    """`rms_norm` of whole heads, then `rotate` of a slice, rounded once at the end.

    x [..., head_dim], weight [head_dim] or None, cos and sin [..., pairs] as in
    `rotate`. In DeepSeek V4 interleaved and trailing are both true. In half
    precision transformers rounds between the two steps; here only the result
    is rounded. ScheduleError names the argument that does not fit.
    """
    normalised = _normalised(x, weight, epsilon)
    rotated = rotate(normalised, cos, sin, interleaved=interleaved, trailing=trailing)
    return rotated.astype(x.dtype)


def _normalised(x: Values, weight: Values | None, epsilon: float) -> Wide:
    """The norm of x in the dtype to work in, not rounded to x's own."""
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise ScheduleError("epsilon", "the norm's epsilon", found=epsilon, allowed="above 0")
    if x.ndim == 0 or x.shape[-1] == 0:
        raise ScheduleError("x", "there is nothing to normalise", found=x.shape)
    if weight is None:
        (wide,) = widen(x=x)
        return wide * _reciprocal_rms(wide, epsilon)
    if weight.shape != x.shape[-1:]:
        raise ScheduleError(
            "weight", "one weight per entry", found=weight.shape, allowed=f"{x.shape[-1:]}"
        )
    wide, scale = widen(x=x, weight=weight)
    return scale * (wide * _reciprocal_rms(wide, epsilon))


def _reciprocal_rms(x: Wide, epsilon: float) -> Wide:
    """1 / sqrt(mean(x²) + epsilon), [..., 1], in x's dtype.

    Summed in float64, so that the order of the sum, which differs between
    libraries, does not show.
    """
    mean = np.mean(np.square(x, dtype=np.float64), axis=-1, keepdims=True)
    reciprocal: Wide = (1.0 / np.sqrt(mean + epsilon)).astype(x.dtype)
    return reciprocal
