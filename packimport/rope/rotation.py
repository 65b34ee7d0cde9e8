"""Rotation: the reference rotation of q and k by a table, in numpy.

A pair (a, b) of entries turns by the angle of its cos and sin:

    a' = a·cos − b·sin
    b' = b·cos + a·sin            (Su et al., RoFormer, arXiv 2104.09864, eq. 34)

Which entries are a pair depends on the family: half-split or interleaved. The
models' NanoChat class turns the other way: that is `inverse=True`.

dtypes: float16, bfloat16, float32 or float64, x and table independently. The
arithmetic is in float32, or in float64 where any input is; every product and
sum is rounded there, and the result once more to x's dtype.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from packimport.errors import ScheduleError
from packimport.rope.precision import Values, widen

Scalar = TypeVar("Scalar", bound=np.generic)


def rotate(
    x: npt.NDArray[Scalar],
    cos: Values,
    sin: Values,
    *,
    interleaved: bool = False,
    trailing: bool = False,
    inverse: bool = False,
) -> npt.NDArray[Scalar]:
    """Rotate the first (or last) 2·pairs entries of each head; the others stay as they are.

    x:           [..., head_dim].
    cos, sin:    [..., pairs], of one shape, not doubled (see `layouts`); the
                 leading axes broadcast to those of x; 2·pairs <= head_dim.
    interleaved: pairs are (x[2i], x[2i+1]); else (x[i], x[i + pairs]).
    trailing:    the rotated slice is the end of the head, as in DeepSeek V4.
    inverse:     turn by −angle (cos, −sin). An attention factor in the table
                 is not divided out: there and back multiplies by its square.

    Returns a new array of x's shape and dtype. ScheduleError names the
    argument whose shape or dtype does not fit.
    """
    check_table(x, cos, sin)
    wide, c, s = widen(x=x, cos=cos, sin=sin)
    if inverse:
        s = -s
    rotary = rotary_slice(x, cos, trailing)
    first, second = _halves(cos.shape[-1], interleaved)
    a, b = wide[..., rotary][..., first], wide[..., rotary][..., second]
    # A copy in x's own dtype keeps the bits of entries that do not rotate.
    out = x.copy()
    turned = out[..., rotary]
    turned[..., first] = a * c - b * s
    turned[..., second] = b * c + a * s
    return out


def rotate_at(
    x: npt.NDArray[Scalar],
    cos: Values,
    sin: Values,
    position_ids: npt.NDArray[np.integer],
    *,
    interleaved: bool = False,
    trailing: bool = False,
    inverse: bool = False,
) -> npt.NDArray[Scalar]:
    """Rotate q or k, each token by the row of its position.

    x:            [batch, heads, seq, head_dim].
    cos, sin:     [rows, pairs].
    position_ids: integers, [batch, seq], or [1, seq] where all rows of the
                  batch share them. A single start at n is n + arange(seq).

    The rest is as in `rotate`; a position outside the table is a
    ScheduleError, as in onnxruntime since 1.27, and never clamped.
    """
    if x.ndim != 4:
        raise ScheduleError(
            "x", "q or k has four axes", found=x.shape, allowed="[batch, heads, seq, head_dim]"
        )
    batch, _, seq, _ = x.shape
    if position_ids.shape not in ((batch, seq), (1, seq)):
        raise ScheduleError(
            "position_ids",
            "there must be one position per token",
            found=position_ids.shape,
            allowed=f"[{batch}, {seq}] or [1, {seq}]",
        )
    cos_rows, sin_rows = rows_at(cos, sin, position_ids)
    return rotate(
        x,
        cos_rows[:, None],
        sin_rows[:, None],
        interleaved=interleaved,
        trailing=trailing,
        inverse=inverse,
    )


def rows_at(
    cos: npt.NDArray[Scalar], sin: npt.NDArray[Scalar], position_ids: npt.NDArray[np.integer]
) -> tuple[npt.NDArray[Scalar], npt.NDArray[Scalar]]:
    """The rows of a table at the given positions.

    cos, sin:     [rows, pairs].
    position_ids: integers of any shape, each in 0 .. rows − 1.

    Returns cos and sin, [*position_ids.shape, pairs]. ScheduleError where a
    position has no row, is not an integer, or the table has not two axes.
    """
    if cos.ndim != 2 or cos.shape != sin.shape:
        raise ScheduleError(
            "cos, sin",
            "a table by position has one shape for both",
            found=(cos.shape, sin.shape),
            allowed="[rows, pairs]",
        )
    if not np.issubdtype(position_ids.dtype, np.integer):
        raise ScheduleError(
            "position_ids", "positions are integers", found=position_ids.dtype.name, allowed="int64"
        )
    rows = cos.shape[0]
    outside = (position_ids < 0) | (position_ids >= rows)
    if outside.any():
        index = tuple(int(i) for i in np.argwhere(outside)[0])
        raise ScheduleError(
            "position_ids",
            f"the position at index {index} has no row in the table",
            found=int(position_ids[index]),
            allowed=f"0 to {rows - 1}",
        )
    return cos[position_ids], sin[position_ids]


def check_table(x: Values, cos: Values, sin: Values) -> None:
    """Refuse a table that does not fit x. A doubled table is the usual reason for one too wide."""
    if x.ndim == 0 or cos.ndim == 0:
        key = "x" if x.ndim == 0 else "cos"
        raise ScheduleError(key, "a single number has no pairs", allowed="at least one axis")
    if sin.shape != cos.shape:
        raise ScheduleError(
            "sin", "cos and sin differ in shape", found=sin.shape, allowed=f"{cos.shape}, as cos"
        )
    head_dim, pairs = x.shape[-1], cos.shape[-1]
    if not 1 <= pairs <= head_dim // 2:
        raise ScheduleError(
            "cos",
            f"the table's pairs do not fit a head of {head_dim} entries",
            found=pairs,
            allowed=f"1 to {head_dim // 2} pairs; undo a doubled table first",
        )
    # Aligned from the right, an axis of the table is as long as x's, or 1.
    axes = zip(reversed(x.shape[:-1]), reversed(cos.shape[:-1]), strict=False)
    if cos.ndim > x.ndim or any(there not in (1, here) for here, there in axes):
        raise ScheduleError(
            "cos",
            "the table's leading axes do not broadcast to those of x",
            found=cos.shape,
            allowed=f"leading axes that broadcast to {x.shape[:-1]}",
        )


def rotary_slice(x: Values, cos: Values, trailing: bool) -> slice:
    """The entries of a head of x that a table rotates: its start, or its end."""
    head_dim, width = x.shape[-1], 2 * cos.shape[-1]
    return slice(head_dim - width, head_dim) if trailing else slice(0, width)


def _halves(pairs: int, interleaved: bool) -> tuple[slice, slice]:
    """Where the first and the second entries of the pairs lie in the rotated slice."""
    if interleaved:
        return slice(0, None, 2), slice(1, None, 2)
    return slice(0, pairs), slice(pairs, None)
