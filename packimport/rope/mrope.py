"""M-RoPE: the table of tokens that have a position on each of several axes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from packimport.errors import ScheduleError
from packimport.rope.axes import axes
from packimport.rope.frequencies import frequencies
from packimport.rope.schedule import Rope
from packimport.rope.tables import Table, cos_sin_of


def mrope_table(rope: Rope, positions: NDArray[np.integer], *, seq_len: int | None = None) -> Table:
    """The table of tokens at `positions`, float64.

    positions: integers [axes, tokens]: a row per section of mrope_section.
               Axis 0 is time, 1 height, 2 width; in the layout `doubled` the
               model's own order.
    seq_len:   as in `frequencies`.

    Returns cos and sin [tokens, pairs]; for the layout `doubled`, where the two
    entries of a pair turn by different angles, [tokens, 2 * pairs]: the first
    entry of every pair, then its partner, to be used as
    x * cos + rotate_half(x) * sin. Where all axes agree it is the row of
    `tables.table` at that position, for `doubled` twice.

    Raises ScheduleError where `rope` is not valid or has no sections, or the
    positions are not integers from 0 up in the right shape.
    """
    values = frequencies(rope, seq_len)
    if rope.mrope_section is None:
        raise ScheduleError("mrope_section", "positions by axis need sections, and there are none")
    _check_positions(positions, len(rope.mrope_section))
    axis = axes(rope)
    inv_freq = np.tile(values.inv_freq, len(axis) // rope.pairs)
    angle = positions.astype(np.float32)[axis].T * inv_freq
    return Table(*cos_sin_of(angle, values.attention_factor))


def _check_positions(positions: NDArray[np.integer], count: int) -> None:
    if positions.ndim != 2 or positions.shape[0] != count:
        raise ScheduleError(
            "positions",
            "one row of positions per axis",
            found=positions.shape,
            allowed=f"[{count}, tokens]",
        )
    if not np.issubdtype(positions.dtype, np.integer) or (positions < 0).any():
        raise ScheduleError(
            "positions", "no positions", found=positions.dtype.name, allowed="integers from 0 up"
        )
