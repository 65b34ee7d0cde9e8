"""By length: tables that depend on the total length of the call, past included.

An `If` chooses at every step. It copies what it hands out, so both of its branches hand
out the rows in use and no more: a GroupQueryAttention and a RotaryEmbedding need as many
rows as the call has positions.
"""

from __future__ import annotations

import numpy as np

from packimport.graph.changes.draft import Draft, Unchangeable
from packimport.graph.changes.uses import Use
from packimport.graph.node import Node
from packimport.graph.onnx_file import body_message, node_message
from packimport.rope.schedule import Rope

_INT64, _NUMBERS = 7, {"float32": 1, "float16": 10, "bfloat16": 16}
_LONGEST = 20


class Lengths:
    """The total length of a call in a graph under change, as int64 [1]."""

    def __init__(self, draft: Draft) -> None:
        self._draft = draft
        self._known: dict[str, str] = {}

    def of(self, uses: list[Use], before: Node) -> str:
        """The value, made right before the node `before` if it is not there yet.

        Raises Unchangeable where the layers have no total length, or several.
        """
        totals = {use.total_length for use in uses}
        if len(totals) > 1 or not all(totals):
            raise Unchangeable("the layers do not take one value as their total length")
        (total,) = totals
        draft = self._draft
        if total not in self._known:
            here = self._at(total, before, 0)
            whole = draft.insert_node(
                before, "Cast", [here], "rope_length/int64", integers={"to": _INT64}
            )
            row = _integers(draft, "rope_length/one", [1])
            self._known[total] = draft.insert_node(
                before, "Reshape", [whole, row], "rope_length/row"
            )
        return self._known[total]

    def _at(self, name: str, before: Node, depth: int) -> str:
        """`name` where it is made before `before`, else the end of a copy of what makes it."""
        main = self._draft.file.main
        node = main.producer(name)
        if node is None or node.index < before.index:
            return name
        if depth > _LONGEST or len(node.outputs) != 1 or main.is_fed(name):
            raise Unchangeable(f"the total length {name} is made behind the node {before.label}")
        return self._draft.copy_node(
            before, node, [self._at(taken, before, depth + 1) for taken in node.inputs if taken]
        )


def choose(
    draft: Draft,
    before: Node,
    length: str,
    *,
    limit: int,
    branches: tuple[bytes, bytes],
    reason: str,
) -> tuple[str, str]:
    """An `If`: beyond `limit` positions the first branch makes cos and sin, else the second."""
    border = _integers(draft, "rope_by_length/limit", [limit])
    is_long = draft.insert_node(before, "Greater", [length, border], "rope_by_length/is_long")
    cos, sin = draft.new_name("rope_by_length/cos"), draft.new_name("rope_by_length/sin")
    own = draft.new_name("rope_by_length/If")
    graphs = {"then_branch": branches[0], "else_branch": branches[1]}
    draft.insert(before, node_message("If", [is_long], [cos, sin], own, graphs=graphs))
    draft.note(own, f"an If chooses the table: up to {limit} positions, or beyond", reason)
    return cos, sin


def rows_in_use(draft: Draft, tables: tuple[str, str], length: str, what: str, dtype: str) -> bytes:
    """A branch that hands out the first rows of a table, as many as the call has positions."""
    zero = _integers(draft, f"rope_by_length/{what}/start", [0])
    nodes, outputs = [], []
    for part, table in zip(("cos", "sin"), tables, strict=True):
        output = draft.new_name(f"rope_by_length/{what}/{part}")
        name = draft.new_name(f"rope_by_length/{what}/{part}/Slice")
        nodes.append(node_message("Slice", [table, zero, length, zero], [output], name))
        outputs.append(output)
    return body_message(draft.new_name(f"rope_by_length/{what}"), nodes, outputs, dtype)


def computed(draft: Draft, rope: Rope, length: str, dtype: str) -> bytes:
    """A branch that computes the table of `dynamic` for the length of the call.

    float32 throughout, in the order in which transformers 5.24.0 computes it:
    base * ((factor * length / max) - (factor - 1)) ** (d / (d - 2)), then its inverse
    powers, then position * frequency.
    """
    assert rope.factor is not None
    assert rope.max_position_embeddings is not None
    branch = _Branch(draft, "rope_by_length/dynamic")
    d = rope.rotary_dim
    numbers = {
        "factor": rope.factor,
        "max": rope.max_position_embeddings,
        "factor_minus_1": rope.factor - 1,
        "growth": d / (d - 2),
        "theta": rope.theta,
        "unit": 1.0,
    }
    exponents = np.arange(0, d, 2).astype(np.float32) / np.float32(d)
    value = branch.node("Cast", [length], "length", {"to": _NUMBERS["float32"]})
    for op, name in (
        ("Mul", "factor"),
        ("Div", "max"),
        ("Sub", "factor_minus_1"),
        ("Pow", "growth"),
        ("Mul", "theta"),
    ):
        value = branch.node(op, [value, branch.floats(name, numbers[name])], f"by_{name}")
    powers = branch.node("Pow", [value, branch.floats("exponents", exponents)], "powers")
    inverse = branch.node("Div", [branch.floats("unit", numbers["unit"]), powers], "inv_freq")
    scalar = _integers(draft, "rope_by_length/dynamic/scalar", [])
    stop = branch.node("Reshape", [length, scalar], "stop")
    start, step = (branch.integer(name, v) for name, v in (("first", 0), ("step", 1)))
    whole = branch.node("Range", [start, stop, step], "positions")
    column = _integers(draft, "rope_by_length/dynamic/column", [-1, 1])
    positions = branch.node("Reshape", [whole, column], "column")
    floats = branch.node("Cast", [positions], "float_positions", {"to": _NUMBERS["float32"]})
    angles = branch.node("Mul", [floats, inverse], "angles")
    outputs = []
    for op in ("Cos", "Sin"):
        value = branch.node(op, [angles], op.lower())
        if dtype != "float32":
            value = branch.node("Cast", [value], f"{op.lower()}_cast", {"to": _NUMBERS[dtype]})
        outputs.append(value)
    return body_message(draft.new_name("rope_by_length/dynamic"), branch.nodes, outputs, dtype)


class _Branch:
    """The nodes of a body, and the constants of the main graph that they take."""

    def __init__(self, draft: Draft, name: str) -> None:
        self.nodes: list[bytes] = []
        self._draft = draft
        self._name = name

    def node(
        self, op: str, inputs: list[str], name: str, integers: dict[str, int] | None = None
    ) -> str:
        output = self._draft.new_name(f"{self._name}/{name}")
        own = self._draft.new_name(f"{self._name}/{name}/{op}")
        self.nodes.append(node_message(op, inputs, [output], own, integers=integers))
        return output

    def floats(self, name: str, values: object) -> str:
        array = np.atleast_1d(np.asarray(values, "<f4"))
        made = f"{self._name}/{name}"
        return self._draft.add_constant(made, "float32", array.shape, array.tobytes())

    def integer(self, name: str, value: int) -> str:
        data = np.asarray(value, "<i8").tobytes()
        return self._draft.add_constant(f"{self._name}/{name}", "int64", (), data)


def _integers(draft: Draft, name: str, values: list[int]) -> str:
    return draft.add_constant(name, "int64", (len(values),), np.asarray(values, "<i8").tobytes())
