"""Damage: rows that no schedule makes. The whole table is scanned, cheaply."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from packimport.rope.difference import tolerance
from packimport.rope.naming.baked import Baked

# Rows at a time, so that a block is read from memory once. Threads cost more than
# they save here.
_ROWS = 1 << 13


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
    still = sin[:, 0] == 0
    empty = np.flatnonzero(still)
    empty = empty[cos[empty, 0] == 0]
    if len(empty):
        usable[empty] = False
        return Damage(usable, _where(~usable, "zeros"), "rows-truncated")
    # One such row is position 0 in another place: a shift, or a second table.
    if still.all() or np.count_nonzero(still[1:]) < 2:
        return Damage(usable)
    still[0] = False
    return Damage(~still, _where(still, "no rotation"), "rows-truncated")


def strays(
    cos: NDArray[np.generic], sin: NDArray[np.generic], baked: Baked, damage: Damage
) -> Damage:
    """`damage`, or where it says nothing, the rows whose first pair is not what `baked` says.

    Naming looks at some rows; a row in another place, or of another table,
    shows in the first pair, which turns fastest.
    """
    if damage.text:
        return damage
    first_pair = baked.first_pair()
    blocks = (np.arange(start, min(start + _ROWS, len(cos))) for start in range(0, len(cos), _ROWS))
    off = np.concatenate([_differ(cos, sin, first_pair, rows) for rows in blocks])
    if not off.any():
        return damage
    return Damage(~off, _where(off, "other values"), "rows-changed")


def _differ(
    cos: NDArray[np.generic], sin: NDArray[np.generic], baked: Baked, rows: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Which of some neighbouring rows hold a first pair that is not what `baked` says."""
    angle, *exact = baked.entries(rows.astype(np.float64))
    off = np.zeros(angle.shape, dtype=np.bool_)
    for array, right in zip((cos, sin), exact, strict=True):
        error = np.abs(array[rows[0] : rows[-1] + 1, :1].astype(np.float64) - right)
        off |= ~(error <= tolerance(right, np.abs(angle), baked.attention_factor, array.dtype))
    return off[:, 0]


def described(damage: Damage, text: str) -> Damage:
    """`damage`, or where it says nothing, rows that hold other values."""
    return damage if damage.text else Damage(damage.usable, text, "rows-changed")


def _has_special(array: NDArray[np.generic]) -> bool:
    """Whether any entry is NaN or infinite, by integer maxima: the exponent is all ones."""
    width = array.dtype.itemsize
    limit = int(np.array(ml_dtypes.finfo(array.dtype).max).view(f"u{width}")) + 1
    sign = 1 << (8 * width - 1)

    for start in range(0, len(array), _ROWS):
        block = array[start : start + _ROWS]
        if int(block.view(f"i{width}").max()) >= limit:
            return True
        if int(block.view(f"u{width}").max()) >= limit + sign:
            return True
    return False


def _where(bad: NDArray[np.bool_], what: str) -> str:
    rows = np.flatnonzero(bad)
    first, count = int(rows[0]), len(rows)
    if count == len(bad):
        return f"{what} in every row"
    if count == 1:
        return f"{what} in row {first}"
    if first + count == len(bad):
        return f"{what} from row {first} on"
    return f"{what} in {count} rows from row {first}"
