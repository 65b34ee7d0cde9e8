"""Sample: the rows of a table that naming looks at."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from packimport.rope.difference import tolerance
from packimport.rope.naming.baked import Baked, Floats

Rows = NDArray[np.int64]

# Rows at an irrational stride: no period of a table hides between them.
_GOLDEN = 0.6180339887498949
_SPREAD = 192
_QUICK = 12
# Of so many crossings of each pair, so many are looked at.
_CROSSINGS, _BEST = 64, 6


class Match(IntEnum):
    """How well a table agrees with what a schedule would bake."""

    NONE = 0
    #: Every entry within `difference.tolerance`.
    WITHIN = 1
    #: Every entry as if rounded once from the float32 angle.
    EXACT = 2


def chosen_rows(rows: int, edges: Iterable[int] = (), spread: int = _SPREAD) -> Rows:
    """The rows to look at, ascending: first, powers of two, around `edges`, last, and a spread."""
    powers = [1 << bit for bit in range(rows.bit_length())]
    near = [p + d for p in (*powers, *edges) for d in (-1, 0, 1)]
    near += [p + p // 2 for p in powers]
    scattered = (np.arange(spread) * _GOLDEN % 1 * rows).astype(np.int64)
    wanted = np.concatenate([np.arange(9), np.array(near), scattered, [rows - 2, rows - 1]])
    return distinct(wanted[(wanted >= 0) & (wanted < rows)].astype(np.int64))


def crossings(frequencies: Floats, rows: int, shift: int = 0) -> Rows:
    """Rows at which some pair's cos or sin is nearly zero: there even bfloat16 is precise.

    frequencies: [pairs], radians per row; shift: row r holds position r + shift.
    """
    count = np.arange(1, _CROSSINGS + 1)
    with np.errstate(divide="ignore"):
        position = count * (np.pi / 2) / np.abs(frequencies)[:, None]
    nearest = np.round(np.minimum(position, 2 * rows))
    off = np.abs(nearest - position) + (nearest - shift >= rows) * rows
    best = np.argsort(off, axis=1)[:, :_BEST]
    found = np.take_along_axis(nearest, best, axis=1).ravel().astype(np.int64) - shift
    return distinct(found[(found >= 0) & (found < rows)])


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """Some rows of a table.

    rows:      int64 [n], ascending.
    positions: float64 [n], what the rows are taken to hold: `rows`, unless shifted.
    cos, sin:  float64 [n, pairs].
    dtype:     of the table.
    """

    rows: Rows
    positions: Floats
    cos: Floats
    sin: Floats
    dtype: np.dtype[np.generic]

    @classmethod
    def take(cls, cos: NDArray[np.generic], sin: NDArray[np.generic], rows: Rows) -> Sample:
        """The given rows of the table cos, sin [rows, pairs]."""
        wide_cos, wide_sin = (array[rows].astype(np.float64) for array in (cos, sin))
        return cls(rows, rows.astype(np.float64), wide_cos, wide_sin, cos.dtype)

    @property
    def pairs(self) -> int:
        """Entries of a row."""
        return int(self.cos.shape[1])

    def doublings(self) -> Sample:
        """Rows 0, 1, 2, 4, 8, ... and the last one."""
        wanted = self.rows & (self.rows - 1) == 0
        wanted[-1:] = True
        return Sample(
            self.rows[wanted],
            self.positions[wanted],
            self.cos[wanted],
            self.sin[wanted],
            self.dtype,
        )

    def columns(self, which: NDArray[np.int64]) -> Sample:
        """The sample of some pairs, in the order of `which`."""
        return replace(self, cos=self.cos[:, which], sin=self.sin[:, which])

    def match(self, baked: Baked) -> Match:
        """How well every entry agrees with `baked`: a few rows first, then all.

        Two tables in one agree only where rows of both were looked at.
        """
        if not len(self.rows) or (baked.then is not None and self.rows[-1] < baked.then[0]):
            return Match.NONE
        few = distinct(np.linspace(0, len(self.rows) - 1, _QUICK).astype(np.int64))
        if self._match_rows(baked, few) == Match.NONE:
            return Match.NONE
        return self._match_rows(baked, slice(None))

    def agreeing(self, baked: Baked) -> NDArray[np.bool_]:
        """The rows, [n], whose entries all lie within the tolerance of `baked`."""
        angle, *exact = baked.entries(self.positions)
        agreed = np.ones(len(self.rows), dtype=np.bool_)
        for given, right in zip((self.cos, self.sin), exact, strict=True):
            allowed = tolerance(right, np.abs(angle), baked.attention_factor, self.dtype)
            agreed &= (np.abs(given - right) <= allowed).all(axis=1)
        return agreed

    def _match_rows(self, baked: Baked, rows: NDArray[np.int64] | slice) -> Match:
        angle, *exact = baked.entries(self.positions[rows])
        angle = np.abs(angle)
        best = Match.EXACT
        for given, right in zip((self.cos[rows], self.sin[rows]), exact, strict=True):
            error = np.abs(given - right)
            if not (error <= tolerance(right, angle, baked.attention_factor, self.dtype)).all():
                return Match.NONE
            drift = angle * 2.0**-21 * baked.attention_factor
            if not (error <= ulp(right, self.dtype) * rounding_ulps(self.dtype) + drift).all():
                best = Match.WITHIN
        return best


def ulp(values: Floats, dtype: np.dtype[np.generic]) -> Floats:
    """The distance of neighbours in `dtype` at `values`."""
    return tolerance(values, np.zeros_like(values), 0.0, dtype)


def rounding_ulps(dtype: np.dtype[np.generic]) -> float:
    """How many ulps an honest entry may be off.

    Half an ulp where a float32 value was shortened, and a little for that
    value's own error. Two where the table is float32: torch's cos is 1 ulp off,
    and the attention factor multiplies once more.
    """
    return 0.5 + 2.0**-7 if dtype.itemsize == 2 else 2.0


def distinct(values: Rows) -> Rows:
    """The values in order, each once: np.unique, whose first call imports numpy.ma (15 ms)."""
    ordered = np.sort(values)
    is_first = np.ones(len(ordered), dtype=np.bool_)
    is_first[1:] = ordered[1:] != ordered[:-1]
    return np.asarray(ordered[is_first])
