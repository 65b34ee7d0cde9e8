"""Damage: rows that no schedule makes. The whole table is scanned, cheaply."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from packimport.rope.difference import tolerance
from packimport.rope.naming.baked import Baked


@dataclass(frozen=True, slots=True, eq=False)
class Damage:
    """What is wrong with the rows of a table.

    usable:  bool [rows]: neither NaN nor infinite, and turned by some angle.
    text:    for a label; "" where nothing is wrong.
    mistake: id of the known mistake, or None.
    """

    usable: NDArray[np.bool_]
    text: str = ""
    mistake: str | None = None


def scan(cos: NDArray[np.generic], sin: NDArray[np.generic]) -> Damage:
    """Look at every entry for NaN and infinity, and at the first pair of every row.

    The first pair turns fastest: after position 0 its sine is never exactly
    zero, unless the row was never filled or is padding. A first pair that never
    turns at all belongs to a schedule with zero frequencies.
    """
    usable = np.ones(cos.shape[0], dtype=np.bool_)
    if _has_special(cos) or _has_special(sin):
        finite = np.isfinite(cos).all(axis=1) & np.isfinite(sin).all(axis=1)
        return Damage(finite, _where(~finite, "NaN or infinite values"), "rows-not-finite")
    first_cos, first_sin = (a[:, 0].astype(np.float64) for a in (cos, sin))
    empty = (first_sin == 0) & (first_cos == 0)
    if empty.any():
        return Damage(~empty, _where(empty, "zeros"), "rows-truncated")
    still = first_sin == 0
    still[0] = False
    # One such row is position 0 in another place: a shift, or a second table.
    if np.count_nonzero(still) < 2 or not first_sin.any():
        return Damage(usable)
    return Damage(~still, _where(still, "no rotation"), "rows-truncated")


def strays(
    cos: NDArray[np.generic], sin: NDArray[np.generic], baked: Baked, damage: Damage
) -> Damage:
    """`damage`, and the usable rows whose first pair is not what `baked` says.

    Naming looks at some rows; a row in another place, or of another table,
    shows in the first pair, which turns fastest.
    """
    angle, *exact = baked.first_pair().entries(np.arange(len(cos), dtype=np.float64))
    off = np.zeros(len(cos), dtype=np.bool_)
    for array, right in zip((cos, sin), exact, strict=True):
        error = np.abs(array[:, :1].astype(np.float64) - right)
        allowed = tolerance(right, np.abs(angle), baked.attention_factor, array.dtype)
        off |= ~(error <= allowed)[:, 0]
    off &= damage.usable
    if damage.text or not off.any():
        return damage
    return Damage(~off, _where(off, "other values"), "rows-changed")


def looked_at(damage: Damage, count: int) -> Damage:
    """`damage`, and where it says nothing, that so many of the rows looked at differ."""
    if damage.text:
        return damage
    return Damage(damage.usable, f"other values in {count} of the rows looked at", "rows-changed")


def _has_special(array: NDArray[np.generic]) -> bool:
    """Whether any entry is NaN or infinite, by integer maxima: the exponent is all ones."""
    width = array.dtype.itemsize
    limit = int(np.array(ml_dtypes.finfo(array.dtype).max).view(f"u{width}")) + 1
    sign = 1 << (8 * width - 1)
    return bool(
        int(array.view(f"i{width}").max()) >= limit
        or int(array.view(f"u{width}").max()) >= limit + sign
    )


def _where(bad: NDArray[np.bool_], what: str) -> str:
    rows = np.flatnonzero(bad)
    first, count = int(rows[0]), len(rows)
    if count == len(bad):
        return f"{what} in every row"
    if first + count == len(bad):
        return f"{what} from row {first} on"
    return f"{what} in {count} rows from row {first}"
