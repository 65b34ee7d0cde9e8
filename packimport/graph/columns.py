"""Columns: tables [rows, pairs] that are picked by positions in three axes, a column by one axis.

Where masks choose, column by column, among the rows of the three axes. Source: packs of
onnxruntime-genai 0.18.0 for NvTensorRtRtx.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from packimport.graph.constants import Constants
from packimport.graph.frame import Trail, Value, resolve
from packimport.graph.node import STANDARD, Node
from packimport.graph.positions import PositionReader, Positions
from packimport.graph.trace import Unfollowed, origin

_AXES = 3


@dataclass(frozen=True, slots=True)
class ColumnReader:
    """Reads the columns of one file."""

    constants: Constants
    positions: PositionReader

    def mask(self, value: Value, node: Node) -> NDArray[np.bool_] | None:
        """The constant mask of columns by which a Where chooses; None where it has none."""
        mask = self.constants.array(resolve(value.frame, node.input(0)))
        if mask is None or mask.dtype != np.bool_ or mask.ndim != 1 or mask.size < 2:
            return None
        return mask.astype(np.bool_)

    def read(self, value: Value, trail: Trail) -> tuple[Value, Positions, tuple[int, ...]]:
        """The table behind nested masks, how its rows are picked, the layout and the sections.

        Raises Unfollowed where the columns are not those of three axes.
        """
        owners: NDArray[np.int64] | None = None
        taken = []
        while (node := value.node) is not None and (node.domain, node.op) == (STANDARD, "Where"):
            mask = self.mask(value, node)
            if mask is None or (owners is not None and mask.shape != owners.shape):
                raise Unfollowed(origin(value))
            trail.nodes.add((value.frame.body, node.index))
            source = self._stream(resolve(value.frame, node.input(1), trail), trail)
            owners = np.full(mask.size, -1) if owners is None else owners
            # The outer mask chooses first.
            owners[(owners < 0) & mask] = source[2]
            taken.append(source)
            value = resolve(value.frame, node.input(2), trail)
        taken.append(self._stream(value, trail))
        assert owners is not None
        owners[owners < 0] = taken[-1][2]
        if len({(table, picked) for table, picked, _ in taken}) != 1:
            raise Unfollowed("is chosen by column from several tables")
        return taken[0][0], taken[0][1], _layout(owners)

    def _stream(self, value: Value, trail: Trail) -> tuple[Value, Positions, int]:
        """The table, the positions and the axis of rows that are picked by one axis."""
        rows = _rows(value)
        trail.nodes.add((value.frame.body, rows.index))
        axis = resolve(value.frame, rows.input(1))
        pick = _rows(axis)
        number = self.constants.integer(resolve(axis.frame, pick.input(1)))
        if number is None or not 0 <= number < _AXES:
            raise Unfollowed(origin(axis))
        picked = self.positions.read(resolve(axis.frame, pick.input(0)))
        return resolve(value.frame, rows.input(0), trail), picked, number


def _rows(value: Value) -> Node:
    """The Gather along the first axis that makes a value. Raises Unfollowed."""
    node = value.node
    if node is None or (node.domain, node.op) != (STANDARD, "Gather") or node.integer("axis", 0):
        raise Unfollowed(origin(value))
    return node


def _layout(owners: NDArray[np.int64]) -> tuple[int, ...]:
    """0 and the sections where they lie one after the other, 1 and them where they are mixed.

    owners: the axis of each column.
    """
    counts = np.bincount(owners, minlength=_AXES)
    mixed = np.zeros_like(owners)
    for axis in (1, 2):
        mixed[axis : min(_AXES * counts[axis], len(owners)) : _AXES] = axis
    for layout, expected in ((0, np.repeat(np.arange(_AXES), counts)), (1, mixed)):
        if np.array_equal(owners, expected):
            return layout, *(int(count) for count in counts)
    raise Unfollowed(f"takes its columns from the axes {owners.tolist()}")
