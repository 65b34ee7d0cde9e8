"""Projections: the way from an attention's query or key back to the MatMul that makes it.

Rotations are often written in plain ops. So the way is followed through ops
that can't rotate by position and no others: a node outside this list is
reported, not passed.
"""

from __future__ import annotations

from dataclasses import dataclass

from packimport.graph.body import Body
from packimport.graph.node import MICROSOFT, STANDARD, Node
from packimport.graph.ops import ROTARY_EMBEDDING

_LAYOUT = {"Reshape", "Transpose", "Identity", "Squeeze", "Unsqueeze", "Flatten", "Split", "Slice"}
_BY_ENTRY = {"Cast", "Clip", "QuantizeLinear", "DequantizeLinear"}
_NORMS = {"LayerNormalization", "SimplifiedLayerNormalization", "RMSNormalization"}
# Ops that hand on their first input: moved, scaled or rounded alike at every position.
_PASSING = {(STANDARD, op) for op in _LAYOUT | _BY_ENTRY | _NORMS} | {
    (MICROSOFT, "QuantizeLinear"),
    (MICROSOFT, "DequantizeLinear"),
}
# Ops whose weights are constants by their own definition.
_QUANTIZED = {
    (MICROSOFT, op)
    for op in ("MatMulNBits", "MatMulNBitsQkv", "MatMulNBitsQLoRA", "MatMulBnb4", "MatMulFpQ4")
}
_PRODUCTS = {
    (STANDARD, "MatMul"),
    (STANDARD, "Gemm"),
    (STANDARD, "MatMulInteger"),
    (MICROSOFT, "FusedMatMul"),
    (MICROSOFT, "DynamicQuantizeMatMul"),
    (MICROSOFT, "MatMulIntegerToFloat"),
}
# The ways of real graphs have fewer than ten nodes; a graph may be made to have endless ones.
_LONGEST = 100
_SUMS = {(STANDARD, "Add")}
_SCALINGS = {(STANDARD, "Mul"), (STANDARD, "Div")}


@dataclass(frozen=True, slots=True)
class Way:
    """How a value comes to an attention node.

    rotations:  the contrib RotaryEmbedding nodes that it passes.
    unfollowed: where the way was lost, one clause; None where it leads to projections.
    """

    rotations: tuple[Node, ...]
    unfollowed: str | None


def way_of(body: Body, name: str) -> Way:
    """The way of a value back to the projections that make it."""
    found: list[Node] = []
    lost, reached = "", False
    seen: set[str] = set()
    waiting = [name]
    while waiting and not lost:
        value = waiting.pop()
        if value in seen:
            continue
        if len(seen) > _LONGEST:
            lost = f"comes from a projection more than {_LONGEST} nodes away"
        seen.add(value)
        node = body.producer(value)
        if node is None:
            lost = f"comes from {value or 'an input that is left out'}, which is no projection"
            break
        kind = (node.domain, node.op)
        if kind == ROTARY_EMBEDDING:
            found.append(node)
        if kind == ROTARY_EMBEDDING or kind in _PASSING:
            waiting.append(node.input(0))
        elif kind in _SUMS:
            waiting += [term for term in node.inputs if not _is_fixed(body, term)]
        elif kind in _SCALINGS and (scaled := _scaled(body, node)) is not None:
            waiting.append(scaled)
        elif kind in _QUANTIZED or (kind in _PRODUCTS and _is_fixed(body, node.input(1))):
            reached = True
        else:
            lost = f"comes through the {node.op} node {node.label}, which may rotate"
    if not (lost or reached):
        lost = f"comes from {name}, and no projection makes that"
    return Way(tuple(found), lost or None)


def _scaled(body: Body, node: Node) -> str | None:
    """The input that a Mul or Div scales by a constant vector or number; None where none is."""
    for scaled, factor in ((0, 1), (1, 0)):
        tensor = body.tensor(node.input(factor))
        made = body.producer(node.input(factor))
        if made is not None and (made.domain, made.op) == (STANDARD, "Constant"):
            tensor = made.tensor("value")
        # A constant with two dims may hold a value per position: a folded table.
        if tensor is not None and sum(size != 1 for size in tensor.shape) <= 1:
            return node.input(scaled)
    return None


def _is_fixed(body: Body, name: str) -> bool:
    """Whether a value is a constant, the same at every position and in every run."""
    for _ in range(_LONGEST):
        node = body.producer(name)
        if node is None:
            return body.tensor(name) is not None
        if (node.domain, node.op) == (STANDARD, "Constant"):
            return True
        if (node.domain, node.op) not in _PASSING or not node.input(0):
            return False
        name = node.input(0)
    return False
