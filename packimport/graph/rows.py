"""Rows: how rows of a table are picked, and which half of a row is taken."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from packimport.graph.constants import Constants
from packimport.graph.frame import Value, resolve
from packimport.graph.lengths import Lengths
from packimport.graph.node import STANDARD, Node, Tensor
from packimport.graph.positions import PositionReader
from packimport.graph.repeats import Repeats
from packimport.graph.strand import Strand
from packimport.graph.trace import Unfollowed, origin

_SAME = frozenset({"Unsqueeze", "Squeeze", "Reshape", "Cast"})
_LONGEST = 60
Ints = tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class RowReader:
    """Reads what ops make of the rows of a strand. All methods raise Unfollowed."""

    constants: Constants
    lengths: Lengths
    positions: PositionReader
    repeats: Repeats

    @property
    def readers(self) -> Mapping[str, Callable[[Value, Node, Strand], Strand]]:
        """What an op makes of a strand of its first input."""
        return {
            "Gather": self.gathered,
            "GatherND": self.gathered,
            "GatherElements": self.gathered,
            "Slice": self.sliced,
            "Split": self.split,
        }

    def gathered(self, value: Value, node: Node, strand: Strand) -> Strand:
        """Rows of a table, picked by the positions."""
        if strand.tensor is None or strand.positions is not None:
            raise Unfollowed(origin(value))
        places = self._places(value, node, strand.tensor)
        try:
            picked = self.positions.read(places)
        except Unfollowed as error:
            raise Unfollowed(f"is picked by position ids that {error}") from error
        return replace(strand, positions=picked)

    def _places(self, value: Value, node: Node, table: Tensor) -> Value:
        """What says which rows are picked. Raises Unfollowed where it isn't rows."""
        places = resolve(value.frame, node.input(1))
        axis, ranks = node.integer("axis", 0), self.repeats.ranks
        if node.op == "Gather":
            is_rows = axis in {0, len(table.shape) - 2}
        elif node.op == "GatherND":
            # [.., 1] places: one index each, of the first dim.
            single = ranks.columns(places)
            is_rows = single is not None and len(table.shape) == 2
            is_rows = is_rows and not node.integer("batch_dims", 0)
            places = single or places
        else:
            # [batch, tokens, entries] places: of all entries the same.
            before = resolve(value.frame, node.input(0))
            single = self.repeats.along_last(places, before, table.shape[-1])
            is_rows = single is not None and ranks.is_axis(axis, ranks.of(before), -2)
            places = single or places
        if not is_rows:
            raise Unfollowed(f"{origin(value)}, which picks along another axis than the rows")
        return places

    def split(self, value: Value, node: Node, strand: Strand) -> Strand:
        """A half of each row of a table that holds cos and sin."""
        ranks = self.repeats.ranks
        before = resolve(value.frame, node.input(0))
        is_last = ranks.is_axis(node.integer("axis", 0), ranks.of(before), -1)
        sizes = (
            self.constants.integers(resolve(value.frame, node.input(1))) if node.input(1) else ()
        )
        if strand.tensor is None or strand.side is not None or strand.layout != "pairs":
            raise Unfollowed(origin(value))
        half = strand.tensor.shape[-1] // 2
        is_even = sizes in {(), (half, half)} and strand.tensor.shape[-1] == 2 * half
        if not (is_last and is_even and len(node.outputs) == 2):
            raise Unfollowed(origin(value))
        return replace(strand, side=value.output)

    def sliced(self, value: Value, node: Node, strand: Strand) -> Strand:
        """The first rows of a table, or a half of each row."""
        inputs = [resolve(value.frame, name) for name in node.inputs[1:]]
        starts, axes, steps = (
            self.constants.integers(inputs[i]) if len(inputs) > i else None for i in (0, 2, 3)
        )
        if strand.tensor is None:
            return self._halved(value, node, strand)
        if steps not in {None, (1,)} or axes is None or len(axes) != 1:
            raise Unfollowed(origin(value))
        ranks = self.repeats.ranks
        if ranks.is_axis(axes[0], ranks.of(resolve(value.frame, node.input(0))), -1):
            bounds = starts, self.constants.integers(inputs[1])
            return replace(strand, side=self._side(value, bounds, strand))
        rank = len(strand.tensor.shape)
        if starts != (0,) or strand.positions is not None or axes[0] not in {0, rank - 2, -2}:
            raise Unfollowed(origin(value))
        return replace(strand, rows=self._rows_left(value, inputs[1], node, strand))

    def _side(self, value: Value, bounds: tuple[Ints, Ints], strand: Strand) -> int:
        """Which half of the entries of a row lies between two bounds: 0 or 1."""
        assert strand.tensor is not None
        width = strand.tensor.shape[-1]
        half = (width // 2,)
        starts, ends = bounds
        if strand.side is None and strand.layout == "pairs" and width % 2 == 0:
            if (starts, ends) == ((0,), half):
                return 0
            if starts == half and ends is not None and len(ends) == 1 and ends[0] >= width:
                return 1
        raise Unfollowed(origin(value))

    def _rows_left(self, value: Value, end: Value, node: Node, strand: Strand) -> int | None:
        """How many rows a Slice from row 0 on leaves; None for all that a call may ask for."""
        assert strand.tensor is not None
        ends = self.constants.integers(end)
        if ends is None:
            longer = self.lengths.offset(end)
            if longer is None or longer < 0:
                raise Unfollowed(f"{origin(value)}, which cuts rows at an end that is not known")
            return strand.rows
        if len(ends) != 1:
            raise Unfollowed(origin(value))
        rows = math.prod(strand.tensor.shape[:-1]) if strand.rows is None else strand.rows
        left = rows_up_to(ends[0], rows)
        if left < 1:
            raise Unfollowed(f"is cut to no row at all in {node.label}")
        return left if left < rows else strand.rows

    def _halved(self, value: Value, node: Node, strand: Strand) -> Strand:
        """The first half of a row of computed cos or sin, which lies twice."""
        before = resolve(value.frame, node.input(0))
        starts, ends, axes, steps = (
            self.constants.integers(resolve(value.frame, node.input(i))) if node.input(i) else None
            for i in (1, 2, 3, 4)
        )
        assert strand.angles is not None
        assert strand.angles.values is not None
        ranks = self.repeats.ranks
        is_half = ends == (len(strand.angles.values),) or (
            ends is None and self._is_half_of(resolve(value.frame, node.input(2)), before)
        )
        is_half = is_half and starts == (0,) and steps in {None, (1,)}
        is_last = axes is not None and len(axes) == 1
        is_last = is_last and ranks.is_axis(axes[0], ranks.of(before), -1) if axes else False
        if not (is_half and is_last and strand.layout == "halves"):
            raise Unfollowed(origin(value))
        return replace(strand, layout="pairs")

    def _is_half_of(self, end: Value, whole: Value) -> bool:
        """Whether an end is half of the last dim of a value, as the graph computes it."""
        for _ in range(_LONGEST):
            node = end.node
            if node is None or node.domain != STANDARD or node.op not in {*_SAME, "Div"}:
                return False
            end = resolve(end.frame, node.input(0))
            if node.op != "Div":
                continue
            divisor = self.constants.integer(resolve(end.frame, node.input(1)))
            return divisor == 2 and self.repeats.ranks.is_last_dim(end, whole)
        return False


def rows_up_to(end: int, rows: int) -> int:
    """How many of `rows` rows a Slice from row 0 to `end` leaves, as ONNX counts ends."""
    return min(rows, max(0, end + rows if end < 0 else end))
