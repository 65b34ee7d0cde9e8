"""Case: one schedule at one length of call, and what a rotation by it gives.

The expected rotation is `packimport.rope.rotation` in float64, by the declared schedule.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from forward.probe_model import Floats, Positions
from packimport.audit.judge import fixed_length, used_length
from packimport.graph.site import Site
from packimport.rope.axes import axes
from packimport.rope.difference import tolerance
from packimport.rope.frequencies import frequencies
from packimport.rope.rotation import rotary_slice, rotate
from packimport.rope.schedule import Rope
from packimport.rope.tables import cos_sin_of
from packimport.semantics.model import Semantics

Doubles = npt.NDArray[np.float64]

_RANDOM = 8
# Two products and a sum in float32, each rounded by at most 2^-24 of itself.
_ARITHMETIC = 2.0**-22
# By how much frequencies in the bands of llama3 differ between machines, where a graph holds
# them: see `measure`.
_BANDS = 2.0**-18


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Case:
    """Positions that are rotated in calls of one length.

    length:    tokens of the call, past and new ones; None where nothing rotates.
    positions: int64, ascending.
    """

    site: Site
    rope: Rope | None
    length: int | None
    positions: Positions

    @property
    def by_axis(self) -> Positions:
        """The positions as the op takes them: [tokens], or [3, tokens], shuffled by axis."""
        if self.site.mrope is None:
            return self.positions
        rope = self.rope
        if rope is None or rope.mrope_section is None:
            return np.tile(self.positions, (3, 1))
        shuffled = [np.random.default_rng(axis).permutation(self.positions) for axis in (1, 2)]
        return np.stack([self.positions, *shuffled])

    def expected(
        self, x: Floats, dtype: np.dtype[np.generic], interleaved: bool
    ) -> tuple[Doubles, Doubles]:
        """The rotated x, and how far an entry may lie from it: float64 of x's shape.

        x:     [tokens, heads, head_dim]. dtype: of the stored table.

        An entry a cos - b sin may be off by |a| and |b| times `difference.tolerance` of
        cos and sin (an ulp of the table's dtype, and the roundings of an angle), and by
        three float32 roundings. Entries that do not rotate must not change.
        """
        wide = x.astype(np.float64)
        if self.rope is None:
            return wide, np.zeros_like(wide)
        values = frequencies(self.rope, self.length)
        angle = self._angles(values.inv_freq)[:, None]
        cos, sin = cos_sin_of(angle, values.attention_factor)
        trailing = self.rope.trailing
        turned = rotate(wide, cos, sin, interleaved=interleaved, trailing=trailing)

        size, far = np.abs(wide), angle.astype(np.float64)
        spread = _BANDS if self.site.waves is not None and self.rope.type == "llama3" else 0.0
        room_cos, room_sin = (
            tolerance(exact, far, values.attention_factor, dtype)
            + far * spread * values.attention_factor
            + np.abs(exact) * _ARITHMETIC
            for exact in (cos, sin)
        )
        # |a| cos + |b| sin for both entries of a pair: each way round gives it for one.
        allowed = np.maximum(
            *(
                rotate(
                    size,
                    room_cos,
                    room_sin,
                    interleaved=interleaved,
                    trailing=trailing,
                    inverse=inverse,
                )
                for inverse in (False, True)
            )
        )
        still = np.ones(x.shape[-1], np.bool_)
        still[rotary_slice(wide, cos, trailing)] = False
        allowed[..., still] = 0
        return turned, allowed

    def _angles(self, inv_freq: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """float32(position) * inv_freq, rounded to float32: [tokens, pairs]."""
        assert self.rope is not None
        if self.site.mrope is None:
            return self.positions.astype(np.float32)[:, None] * inv_freq
        return self.by_axis.astype(np.float32)[axes(self.rope)].T * inv_freq


def cases(site: Site, rope: Rope | None, semantics: Semantics) -> Iterator[Case]:
    """One case for each set of frequencies that the site should serve, the shortest first."""
    if rope is None:
        stop = semantics.usable_length or (site.rows if site.table is not None else 2)
        yield Case(site=site, rope=None, length=None, positions=_positions(site, None, stop))
        return
    lengths = _lengths(site, rope, semantics)
    for index, length in enumerate(lengths):
        following = lengths[index + 1] if index + 1 < len(lengths) else None
        if following is None or not _alike(rope, length, following):
            positions = _positions(site, rope, length)
            yield Case(site=site, rope=rope, length=length, positions=positions)


def _lengths(site: Site, rope: Rope, semantics: Semantics) -> list[int]:
    """Lengths of call that show every set of frequencies, ascending."""
    if site.waves is not None and site.waves.growth is not None:
        # Its values are those of a call of this length.
        return [site.waves.growth.sample]
    first, last = 1, max(used_length(site, rope, semantics), 1)
    if site.length is not None and site.length.long:
        first = site.length.limit + 1
        last = max(first, last)
    elif site.length is not None:
        last = min(site.length.limit, last)
    fixed = fixed_length(rope)
    shown = {first, last} if fixed is None or not first <= fixed < last else {first, fixed, last}
    return sorted(shown)


def _alike(rope: Rope, one: int, other: int) -> bool:
    here, there = (frequencies(rope, length) for length in (one, other))
    same = np.array_equal(here.inv_freq, there.inv_freq)
    return same and here.attention_factor == there.attention_factor


def _positions(site: Site, rope: Rope | None, stop: int) -> Positions:
    """The first, the last and the edges below `stop`, and of a table to its last row."""
    rows = site.rows if site.table is not None else 0
    edges = {stop, rows, *(1 << power for power in range(max(stop, rows).bit_length()))}
    if rope is not None:
        edges |= {
            edge
            for edge in (
                rope.original_max_position_embeddings,
                rope.max_position_embeddings,
                site.length.limit if site.length is not None else None,
            )
            if edge is not None
        }
    wanted = {0, *(edge + step for edge in edges for step in (-1, 0, 1))}
    wanted |= set(np.random.default_rng(0).integers(0, max(stop, rows), _RANDOM).tolist())
    end = rows or stop
    return np.array(sorted(at for at in wanted if 0 <= at < end), np.int64)
