"""Positions: whether a value is the positions of a call, and how far they were changed."""

from __future__ import annotations

from dataclasses import dataclass

from packimport.graph.constants import Constants
from packimport.graph.frame import Value, resolve
from packimport.graph.lengths import Lengths, Switch
from packimport.graph.node import STANDARD, Node
from packimport.graph.protos import DTYPES
from packimport.graph.site import Hints
from packimport.graph.trace import Unfollowed, origin

_RESHAPING = frozenset({"Reshape", "Unsqueeze", "Squeeze", "Flatten", "Expand"})
# What holds any position that a graph meets; smaller integers do not.
_WHOLE = frozenset({"int32", "int64", "uint32", "uint64"})
_FLOATS = ("float64", "float32", "bfloat16", "float16")
_LONGEST = 60


@dataclass(frozen=True, slots=True)
class Positions:
    """The positions of a call.

    dtype: the shortest float they were cast to, or "int64".
    shift: rows that are added, and the length that the call must be above for that;
           None where they are as fed.
    start: "fed" as an input, "past" where they count on from the key cache, "zero"
           where they count from 0 at every call.
    """

    dtype: str = "int64"
    shift: tuple[int, Switch] | None = None
    start: str = "fed"


@dataclass(frozen=True, slots=True)
class PositionReader:
    """Reads the positions of one file."""

    constants: Constants
    lengths: Lengths
    hints: Hints

    def read(self, value: Value, *, floats: bool = False) -> Positions:
        """The positions behind a value. Raises Unfollowed where it is something else.

        floats: whether they may be floats, to be multiplied by frequencies.
        """
        dtype, shift = "int64", None
        for _ in range(_LONGEST):
            node = value.node
            if node is None or node.domain != STANDARD:
                break
            if node.op == "Cast":
                target = DTYPES.get(node.integer("to", 0), "another type")
                if target not in _WHOLE and not (floats and target in _FLOATS):
                    raise Unfollowed(f"come through {node.label}, a Cast to {target}")
                dtype = shorter(dtype, target) if target in _FLOATS else dtype
                value = resolve(value.frame, node.input(0))
            elif node.op in _RESHAPING:
                value = resolve(value.frame, node.input(0))
            elif node.op == "Add" and shift is None:
                value, shift = self._shifted(value, node)
            elif node.op == "Range":
                return Positions(dtype, shift, self._start(value, node))
            else:
                break
        if value.is_graph_input and value.name == self.hints.position_ids:
            return Positions(dtype, shift)
        if value.tensor is not None:
            raise Unfollowed(f"are the constant {value.name}, not the input {self._name}")
        if value.is_graph_input:
            raise Unfollowed(f"are the graph input {value.name}, not {self._name}")
        raise Unfollowed(origin(value).replace("comes", "come", 1))

    @property
    def _name(self) -> str:
        return self.hints.position_ids

    def _shifted(self, value: Value, node: Node) -> tuple[Value, tuple[int, Switch]]:
        """The summand that is positions, and the shift that the other one is."""
        left, right = (resolve(value.frame, name) for name in node.inputs)
        for positions, summand in ((left, right), (right, left)):
            shift = self._shift(summand)
            if shift is not None:
                return positions, shift
        raise Unfollowed(origin(value).replace("comes", "come", 1))

    def _shift(self, value: Value) -> tuple[int, Switch] | None:
        """Rows and condition of `Mul(Cast(long), rows)` or `Where(long, rows, 0)`."""
        while (node := value.node) is not None and node.op in {"Cast", "Unsqueeze", "Reshape"}:
            value = resolve(value.frame, node.input(0))
        if node is None or node.domain != STANDARD or node.op not in {"Mul", "Where"}:
            return None
        inputs = [resolve(value.frame, name) for name in node.inputs]
        if node.op == "Where":
            condition, rows, none = inputs
            if self.constants.integer(none) != 0:
                return None
        else:
            condition, rows = inputs
            if self.constants.integer(rows) is None:
                condition, rows = rows, condition
        count = self.constants.integer(rows)
        return None if count is None else (count, self.lengths.switch(condition))

    def _start(self, value: Value, node: Node) -> str:
        """Where a Range starts to count. Raises Unfollowed unless at 0 or at the past length."""
        start, _, step = (resolve(value.frame, name) for name in node.inputs)
        if self.constants.integer(step) != 1:
            raise Unfollowed(f"come from the Range node {node.label} with a step that is not 1")
        if self.constants.integer(start) == 0:
            return "zero"
        if self._is_past(start):
            return "past"
        raise Unfollowed(
            f"come from the Range node {node.label}, which does not start at the past length"
        )

    def _is_past(self, value: Value) -> bool:
        """Whether a value is the third dim of a graph input: the tokens in a key cache."""
        for _ in range(_LONGEST):
            node = value.node
            if node is None or node.domain != STANDARD:
                return False
            if node.op in {"Cast", "Squeeze", "Unsqueeze", "Reshape"}:
                value = resolve(value.frame, node.input(0))
                continue
            if node.op == "Gather":
                index = self.constants.integer(resolve(value.frame, node.input(1)))
                shape = resolve(value.frame, node.input(0))
            else:
                index, shape = node.integer("start", 0), value
            made = shape.node
            if made is None or made.op != "Shape" or index not in {2, -2}:
                return False
            return resolve(shape.frame, made.input(0)).is_graph_input
        return False


def shorter(one: str, other: str) -> str:
    """Of two dtypes the one that holds fewer numbers; integers hold the most."""
    known = [dtype for dtype in (one, other) if dtype in _FLOATS]
    return max(known, key=_FLOATS.index, default="int64")
