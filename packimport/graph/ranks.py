"""Ranks: how many dims a value has, so that a positive axis says which one it is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from packimport.graph.constants import Constants
from packimport.graph.frame import Value, resolve
from packimport.graph.node import STANDARD, Node

_SAME = frozenset(
    {"Cast", "Cos", "Sin", "Neg", "Slice", "Tile", "Transpose", "Concat", "Identity"}
    | {"Split", "GatherElements"}
)
_WIDEST = frozenset({"Mul", "Add", "Sub", "Div", "MatMul", "Where"})
_DEEPEST = 60


@dataclass(frozen=True, slots=True)
class Ranks:
    """Reads the ranks of one file's values.

    inputs: the ranks of the main graph's inputs, as the graph states them.
    """

    constants: Constants
    inputs: Mapping[str, int]
    known: dict[Value, int | None] = field(default_factory=dict)

    def of(self, value: Value, depth: int = 0) -> int | None:
        """The rank; None where it is not understood. value: as `resolve` gives it."""
        if value not in self.known:
            self.known[value] = None  # a value that depends on itself has none
            if depth < _DEEPEST:
                self.known[value] = self._made(value, depth)
        return self.known[value]

    def is_axis(self, axis: int, rank: int | None, wanted: int) -> bool:
        """Whether an axis of a value of a rank is the one that -1, -2, ... names."""
        return axis == wanted or (rank is not None and axis == rank + wanted)

    def _made(self, value: Value, depth: int) -> int | None:
        tensor, node = value.tensor, value.node
        if tensor is not None:
            return len(tensor.shape)
        if node is None:
            return self.inputs.get(value.name) if value.is_graph_input else None
        if node.domain != STANDARD or not node.inputs:
            return None
        ranks = [self.of(resolve(value.frame, name), depth + 1) for name in node.inputs if name]
        if node.op in _SAME:
            return ranks[0]
        if node.op in _WIDEST:
            known = [rank for rank in ranks if rank is not None]
            return max(known) if len(known) == len(ranks) else None
        if node.op == "Gather" and len(ranks) == 2 and None not in ranks:
            return sum(rank or 0 for rank in ranks) - 1
        if node.op == "GatherND":
            return self._picked(value, node, ranks)
        if node.op == "Unsqueeze":
            axes = self.axes(value, node)
            return None if axes is None or ranks[0] is None else ranks[0] + len(axes)
        if node.op in {"Reshape", "Expand"}:
            count = self._count(resolve(value.frame, node.input(1)), depth + 1)
            if node.op == "Reshape" or count is None or ranks[0] is None:
                return count
            return max(count, ranks[0])
        return None

    def columns(self, value: Value) -> Value | None:
        """x of a value x[..., None]; None for another value."""
        node = value.node
        if node is None or (node.domain, node.op) != (STANDARD, "Unsqueeze"):
            return None
        axes = self.axes(value, node) or ()
        is_last = len(axes) == 1 and self.is_axis(axes[0], self.of(value), -1)
        return resolve(value.frame, node.input(0)) if is_last else None

    def is_last_dim(self, number: Value, whole: Value) -> bool:
        """Whether a number is the last dim of a value, picked from its shape."""
        picked = number.node
        if picked is None or (picked.domain, picked.op) != (STANDARD, "Gather"):
            return False
        index = self.constants.integer(resolve(number.frame, picked.input(1)))
        shape = resolve(number.frame, picked.input(0))
        made = shape.node
        if index is None or made is None or (made.domain, made.op) != (STANDARD, "Shape"):
            return False
        if made.integer("start", 0) or made.has("end"):
            return False
        is_whole = resolve(shape.frame, made.input(0)) == whole
        return is_whole and self.is_axis(index, self.of(whole), -1)

    def _picked(self, value: Value, node: Node, ranks: list[int | None]) -> int | None:
        """The rank of rows that a GatherND picks by one index each."""
        if node.integer("batch_dims", 0) or len(ranks) != 2:
            return None
        data, places = ranks
        if data is None or places is None:
            return None
        is_single = self.columns(resolve(value.frame, node.input(1))) is not None
        return data + places - 2 if is_single else None

    def axes(self, value: Value, node: Node) -> tuple[int, ...] | None:
        """The axes of a Squeeze or an Unsqueeze; None where no constant says them."""
        if node.input(1):
            return self.constants.integers(resolve(value.frame, node.input(1)))
        return node.integers("axes")

    def _count(self, shape: Value, depth: int) -> int | None:
        """How many dims a shape has: the entries of a vector."""
        array = self.constants.array(shape)
        if array is not None:
            return math.prod(array.shape)
        node = shape.node
        if node is None or node.domain != STANDARD or depth > _DEEPEST:
            return None
        if node.op == "Concat":
            counts = [self._count(resolve(shape.frame, n), depth + 1) for n in node.inputs]
            known = [count for count in counts if count is not None]
            return sum(known) if len(known) == len(counts) else None
        if node.op == "Shape" and not node.has("start") and not node.has("end"):
            return self.of(resolve(shape.frame, node.input(0)), depth + 1)
        if node.op == "Unsqueeze":
            return 1  # of a number
        if node.op == "Where":
            # torch's older exporter guards the -1 of an expand so: two vectors of one length.
            both = {self._count(resolve(shape.frame, n), depth + 1) for n in node.inputs[1:]}
            return both.pop() if len(both) == 1 else None
        if node.op == "Reshape":
            is_flat = self.constants.integers(resolve(shape.frame, node.input(1))) == (-1,)
            return self._count(resolve(shape.frame, node.input(0)), depth + 1) if is_flat else None
        if node.op == "ConstantOfShape":
            like = resolve(shape.frame, node.input(0))
            made = like.node
            if made is None or (made.domain, made.op) != (STANDARD, "Shape"):
                return None
            return self._count(resolve(like.frame, made.input(0)), depth + 1)
        if node.op == "Slice":
            return self._sliced(shape, node, depth)
        return None

    def _sliced(self, shape: Value, node: Node, depth: int) -> int | None:
        whole = self._count(resolve(shape.frame, node.input(0)), depth + 1)
        bounds = [
            self.constants.integers(resolve(shape.frame, name)) for name in node.inputs[1:] if name
        ]
        if whole is None or len(bounds) < 2 or any(b is None or len(b) != 1 for b in bounds):
            return None
        start, stop, *rest = (bound[0] for bound in bounds if bound is not None)
        step = rest[1] if len(rest) > 1 else 1
        return len(range(whole)[start:stop:step]) if step else None
