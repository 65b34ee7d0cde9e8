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
    return np.unique(wanted[(wanted >= 0) & (wanted < rows)]).astype(np.int64)


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

    @property
    def short(self) -> bool:
        """Whether the table is of half precision."""
        return self.dtype.itemsize == 2

    def columns(self, which: NDArray[np.int64]) -> Sample:
        """The sample of some pairs, in the order of `which`."""
        return replace(self, cos=self.cos[:, which], sin=self.sin[:, which])

    def match(self, baked: Baked) -> Match:
        """How well every entry agrees with `baked`: a few rows first, then all.

        Two tables in one agree only where rows of both were looked at.
        """
        if not len(self.rows) or (baked.then is not None and self.rows[-1] < baked.then[0]):
            return Match.NONE
        few = np.unique(np.linspace(0, len(self.rows) - 1, _QUICK).astype(np.int64))
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
