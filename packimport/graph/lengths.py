"""Lengths: which values of a graph are the total length of a call, and which conditions ask it.

The total length is past and new tokens together: the width of the attention mask,
or the largest position plus one.
"""

from __future__ import annotations

from dataclasses import dataclass

from packimport.graph.constants import Constants
from packimport.graph.frame import Value, resolve
from packimport.graph.node import STANDARD, Node
from packimport.graph.site import Hints
from packimport.graph.trace import Unfollowed

_PASSING = frozenset({"Cast", "Squeeze", "Unsqueeze", "Reshape", "Identity"})
_COMPARING = frozenset({"Greater", "GreaterOrEqual", "Less", "LessOrEqual"})
_LONGEST = 50


@dataclass(frozen=True, slots=True)
class Switch:
    """A condition on the total length: true where it is above `limit`, or where it is not."""

    limit: int
    above: bool


@dataclass(frozen=True, slots=True)
class Lengths:
    """Reads lengths and conditions of one file."""

    constants: Constants
    hints: Hints

    def switch(self, value: Value) -> Switch:
        """The condition behind a value. Raises Unfollowed where it is another one."""
        turned = False
        for _ in range(_LONGEST):
            node = value.node
            if node is None or node.domain != STANDARD:
                break
            if node.op == "Not" or node.op in _PASSING:
                turned ^= node.op == "Not"
                value = resolve(value.frame, node.input(0))
                continue
            if node.op in _COMPARING:
                found = self._compared(value, node)
                return Switch(found.limit, found.above ^ turned)
            break
        raise Unfollowed(f"which {_made(value)} chooses, not a comparison of the length")

    def _compared(self, value: Value, node: Node) -> Switch:
        left, right = (resolve(value.frame, name) for name in node.inputs)
        op = node.op
        if self.constants.integer(left) is not None:
            left, right = right, left
            op = op.replace("Greater", "?").replace("Less", "Greater").replace("?", "Less")
        number, offset = self.constants.integer(right), self.offset(left)
        if number is None or offset is None:
            raise Unfollowed(f"which {node.label} chooses by a value that is not the total length")
        # length + offset > number, or the reverse, as length > limit.
        limit = number - offset
        if op in {"GreaterOrEqual", "Less"}:
            limit -= 1
        return Switch(limit, op.startswith("Greater"))

    def offset(self, value: Value) -> int | None:
        """k where a value is the total length + k; None where it is something else."""
        offset = 0
        for _ in range(_LONGEST):
            node = value.node
            if node is None or node.domain != STANDARD:
                return None
            if node.op in _PASSING:
                value = resolve(value.frame, node.input(0))
            elif node.op in {"Add", "Sub"}:
                value, step = self._stepped(value, node)
                if step is None:
                    return None
                offset += step
            elif node.op == "ReduceMax":
                return offset - 1 if self._is_all_positions(value, node) else None
            else:
                return offset if self._is_mask_width(value, node) else None
        return None

    def _stepped(self, value: Value, node: Node) -> tuple[Value, int | None]:
        left, right = (resolve(value.frame, name) for name in node.inputs)
        step = self.constants.integer(right)
        if step is not None:
            return left, step if node.op == "Add" else -step
        return right, self.constants.integer(left) if node.op == "Add" else None

    def _is_all_positions(self, value: Value, node: Node) -> bool:
        """Whether a ReduceMax takes the largest of all position ids."""
        if node.has("axes") or node.input(1) or node.integer("noop_with_empty_axes", 0):
            return False
        source = resolve(value.frame, node.input(0))
        for _ in range(_LONGEST):
            before = source.node
            if before is None or before.domain != STANDARD or before.op not in _PASSING:
                break
            source = resolve(source.frame, before.input(0))
        return source.is_graph_input and source.name == self.hints.position_ids

    def _is_mask_width(self, value: Value, node: Node) -> bool:
        """Whether a node gives the second dim of the attention mask."""
        if node.op == "Gather":
            index = self.constants.integer(resolve(value.frame, node.input(1)))
            shape = resolve(value.frame, node.input(0))
            made = shape.node
            if made is None or made.op != "Shape" or made.integer("start", 0):
                return False
            return index in {1, -1} and self._is_mask(resolve(shape.frame, made.input(0)))
        if node.op == "Shape":
            is_second = node.integer("start", 0) in {1, -1} and (
                not node.has("end") or node.integer("end", 0) == 2
            )
            return is_second and self._is_mask(resolve(value.frame, node.input(0)))
        return False

    def _is_mask(self, value: Value) -> bool:
        return value.is_graph_input and value.name == self.hints.attention_mask


def _made(value: Value) -> str:
    node = value.node
    return f"the {node.op} node {node.label}" if node is not None else f"the value {value.name}"
