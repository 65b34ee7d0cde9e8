"""Interleaving: models that store pairs side by side and rotate them apart.

Sorting a head's pairs apart, (x0, x1), (x2, x3), … into x0, x2, … x1, x3, …,
turns interleaved rotation into half-split rotation.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from packimport.errors import ScheduleError
from packimport.rope.precision import Values
from packimport.rope.rotation import check_table, rotary_slice, rotate

Scalar = TypeVar("Scalar", bound=np.generic)


def rotate_deinterleaved(
    x: npt.NDArray[Scalar], cos: Values, sin: Values, *, trailing: bool = False
) -> npt.NDArray[Scalar]:
    """`rope_interleave` of DeepSeek V3: sort the pairs apart, then rotate half-split.

    The pairs are (x[2i], x[2i+1]), as for interleaved rotation, but the result
    stays sorted: entry i and entry i + pairs. q and k agree on that, so their
    products are those of interleaved rotation. To undo it, rotate half-split
    with `inverse=True` and `interleave` the slice.

    Shapes, dtypes and errors as in `rotate`. Source: apply_rotary_pos_emb_interleave
    of transformers 5.24.0, models/deepseek_v3.
    """
    check_table(x, cos, sin)
    rotary = rotary_slice(x, cos, trailing)
    apart = x.copy()
    apart[..., rotary] = deinterleave(x[..., rotary])
    return rotate(apart, cos, sin, trailing=trailing)


def deinterleave(x: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
    """[..., 2·pairs] with the even entries first, then the odd ones. ScheduleError: odd width."""
    _check_even(x)
    return np.concatenate([x[..., 0::2], x[..., 1::2]], axis=-1)


def interleave(x: npt.NDArray[Scalar]) -> npt.NDArray[Scalar]:
    """What undoes `deinterleave`: entry i and entry i + pairs side by side. Same shapes, errors."""
    _check_even(x)
    pairs = x.shape[-1] // 2
    return np.stack([x[..., :pairs], x[..., pairs:]], axis=-1).reshape(x.shape)


def _check_even(x: Values) -> None:
    """Refuse an array whose last axis is not a number of pairs."""
    if x.ndim == 0 or x.shape[-1] % 2:
        raise ScheduleError(
            "x", "the entries do not make pairs", found=x.shape, allowed="an even last axis"
        )
