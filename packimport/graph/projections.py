"""Projections: the way from an attention's query or key back to the MatMul that makes it.

Rotations are often written in plain ops. So the way is followed through ops
that can't rotate by position and no others: a node outside this list is
reported, not passed.
"""

from __future__ import annotations

from dataclasses import dataclass

from packimport.graph import ryzen_ai
from packimport.graph.constants import Constants
from packimport.graph.frame import Value, resolve
from packimport.graph.moves import Moves, Stage
from packimport.graph.node import MICROSOFT, STANDARD, Node
from packimport.graph.turns import Turn, turn_of

_LAYOUT = {
    "Reshape",
    "Transpose",
    "Identity",
    "Squeeze",
    "Unsqueeze",
    "Flatten",
    "Split",
    "Slice",
    "Expand",
    "Tile",
}
_BY_ENTRY = {"Cast", "Clip", "QuantizeLinear", "DequantizeLinear"}
_NORMS = {"LayerNormalization", "SimplifiedLayerNormalization", "RMSNormalization"}
# Ops that hand on their first input: moved, scaled or rounded alike at every position.
_PASSING = {(STANDARD, op) for op in _LAYOUT | _BY_ENTRY | _NORMS} | {
    (MICROSOFT, "QuantizeLinear"),
    (MICROSOFT, "DequantizeLinear"),
    *ryzen_ai.PASSING,
}
# Ops whose weights are constants by their own definition.
_QUANTIZED = {
    (MICROSOFT, op)
    for op in ("MatMulNBits", "MatMulNBitsQkv", "MatMulNBitsQLoRA", "MatMulBnb4", "MatMulFpQ4")
} | ryzen_ai.PROJECTIONS
_PRODUCTS = {
    (STANDARD, "MatMul"),
    (STANDARD, "Gemm"),
    (STANDARD, "MatMulInteger"),
    (MICROSOFT, "FusedMatMul"),
    (MICROSOFT, "DynamicQuantizeMatMul"),
    (MICROSOFT, "MatMulIntegerToFloat"),
}
# The ways of real graphs have fewer than forty nodes; a graph may be made to have endless ones.
_LONGEST = 200
_SUMS = {(STANDARD, "Add")}
_SCALINGS = {(STANDARD, "Mul"), (STANDARD, "Div")}
_CACHES = {(STANDARD, "TensorScatter"): (0, 1)}
# What takes two values at least.
_OF_TWO = frozenset({*_SCALINGS, *_PRODUCTS, *_CACHES, (STANDARD, "Sub")})
# One number per token, from the token's own entries: what a norm divides by.
_NORM_STEPS = {"Sqrt", "Reciprocal", "Add", "Div", "Cast", "Pow", "Max", "Clip", "Mul"}
_NORM_MEANS = {"ReduceMean", "ReduceSum", "ReduceSumSquare", "ReduceL2"}
# What the shapes of a graph are computed with; none of these counts positions.
_SHAPE_STEPS = {"Gather", "Cast", "Sqrt", "Div", "Mul", "Reciprocal", "Squeeze", "Unsqueeze"} | {
    "Slice",
    "Pow",
}
_DEEPEST = 20


@dataclass(frozen=True, slots=True)
class Way:
    """How a value comes to an attention node.

    turns:      the rotations that it passes.
    caches:     the graph inputs that are joined to it: keys of earlier calls.
    trailing:   whether what is rotated is the end of a head.
    sorted:     whether neighbours are sorted apart before they are rotated.
    repeated:   of how many heads, by the reshape right behind the rotation, what is repeated for
                the attention has; None where nothing is repeated, or no constant says it.
    unfollowed: where the way was lost, one clause; None where it leads to projections.
    """

    turns: tuple[Turn, ...]
    caches: tuple[str, ...]
    trailing: bool
    sorted: bool
    repeated: int | None
    unfollowed: str | None


class _Walk:
    """One walk from a value back to projections."""

    def __init__(self, constants: Constants, moves: Moves) -> None:
        self.constants = constants
        self.moves = moves
        self.turns: list[Turn] = []
        self.caches: list[str] = []
        self.trailing = False
        self.reached = False

    def go(self, start: Value, stage: Stage) -> str:
        """Why the walk stopped before a projection; "" where it came to one."""
        seen: set[Value] = set()
        waiting = [(start, stage)]
        # What counts only if a rotation comes before it.
        moved = ""
        while waiting:
            value, stage = waiting.pop()
            if value in seen:
                continue
            if len(seen) > _LONGEST:
                return f"comes from a projection more than {_LONGEST} nodes away"
            seen.add(value)
            node = value.node
            if node is None:
                name = value.name or "an input that is left out"
                return f"comes from {name}, which is no projection"
            following = self._step(value, node, stage)
            if following is None:
                return f"comes through the {node.op} node {node.label}, which may rotate"
            if (node.domain, node.op) in _PASSING:
                reason = self.moves.refusal(value, node, stage)
                if reason is not None:
                    reason = f"comes through the {node.op} node {node.label}, which {reason}"
                    if stage is Stage.BEFORE:
                        return reason
                    moved = moved or reason
            waiting += following
        if self.turns and moved:
            return moved
        return "" if self.reached else f"comes from {start.name}, and no projection makes that"

    def _step(self, value: Value, node: Node, stage: Stage) -> list[tuple[Value, Stage]] | None:
        """The values to follow from here; None where the node may rotate."""
        turn = turn_of(value, self.constants)
        if turn is not None:
            self.turns.append(turn)
            return [(turn.turned, Stage.BEFORE)]
        if (node.domain, node.op) == (STANDARD, "Concat"):
            return self._joined(value, node, stage)
        if stage is Stage.BESIDE and self._is_run(value, node):
            return [(resolve(value.frame, node.input(0)), stage)]
        if stage is Stage.BEFORE and self.moves.picks_heads(value, node):
            return [(resolve(value.frame, node.input(0)), stage)]
        found = self._plain(value, node)
        return None if found is None else [(before, stage) for before in found]

    def _is_run(self, value: Value, node: Node) -> bool:
        """Whether a Gather takes entries of a head that follow each other, as a Slice does."""
        if (node.domain, node.op) != (STANDARD, "Gather") or node.integer("axis", 0) not in {-1, 3}:
            return False
        places = self.constants.integers(resolve(value.frame, node.input(1))) or ()
        return places != () and places == tuple(range(places[0], places[0] + len(places)))

    def _plain(self, value: Value, node: Node) -> list[Value] | None:
        kind = (node.domain, node.op)
        inputs = [resolve(value.frame, name) for name in node.inputs]
        if len(inputs) < 2 and kind in _OF_TWO:
            return None  # no such op takes one value: the graph is damaged
        if kind in _PASSING:
            return inputs[:1]
        if kind in _SUMS:
            return [term for term in inputs if not _is_fixed(term)]
        if kind in _SCALINGS or kind == (STANDARD, "Sub"):
            scaled = _scaled(node, inputs)
            return None if scaled is None else [scaled]
        if kind in _CACHES:
            cache, new = (inputs[i] for i in _CACHES[kind])
            self.caches.append(cache.name)
            return [new] if cache.is_graph_input else None
        if kind in _QUANTIZED or (kind in _PRODUCTS and _is_fixed(inputs[1])):
            self.reached = True
            return []
        return None

    def _joined(self, value: Value, node: Node, stage: Stage) -> list[tuple[Value, Stage]] | None:
        """What a Concat joins: a key cache and new keys, or parts of a head."""
        inputs = [resolve(value.frame, name) for name in node.inputs]
        caches = [part for part in inputs if part.is_graph_input]
        new = [part for part in inputs if not part.is_graph_input]
        if len(inputs) != 2 or len(new) == 0:
            return None
        if caches:
            self.caches += [cache.name for cache in caches]
            return [(part, stage) for part in new]
        if node.integer("axis", 0) not in {-1, 3} or inputs[0] == inputs[1]:
            return None
        rotated = [turn_of(part, self.constants) is not None for part in inputs]
        if rotated.count(True) != 1:
            return None
        self.trailing |= rotated[1]
        # The rotated part is followed first: what both come from is before its rotation.
        return [(inputs[rotated.index(False)], Stage.BESIDE), (inputs[rotated.index(True)], stage)]


def way_of(
    value: Value, constants: Constants, *, turned_keys: int = 0, is_rotated: bool = True
) -> Way:
    """The way of a value back to the projections that make it.

    turned_keys: of `Moves`. is_rotated: whether it is rotated where it comes from; else the
    attention itself does that.
    """
    moves = Moves(constants, turned_keys)
    walk = _Walk(constants, moves)
    lost = walk.go(value, Stage.BEHIND if is_rotated else Stage.BEFORE)
    turns, caches = tuple(walk.turns), tuple(walk.caches)
    repeated = moves.heads if moves.repeated else None
    return Way(turns, caches, walk.trailing, moves.sorted, repeated, lost or None)


def _scaled(node: Node, inputs: list[Value]) -> Value | None:
    """The input that a Mul, Div or Sub changes by one number per token, or per entry."""
    for scaled, factor in ((0, 1), (1, 0)):
        by = inputs[factor]
        is_factor = factor == 1 or node.op == "Mul"
        if _is_vector(by) or (is_factor and (_is_norm(by) or _is_of_shapes(by))):
            return inputs[scaled]
    return None


def _is_vector(value: Value) -> bool:
    tensor = value.tensor
    # A constant with two dims may hold a value per position: a folded table.
    if tensor is not None:
        return sum(size != 1 for size in tensor.shape) <= 1
    node = value.node
    return node is not None and node.op == "Constant"


def _is_norm(value: Value, depth: int = 0) -> bool:
    """Whether a value is one number per token, made from a mean over its entries."""
    node = value.node
    if node is None or node.domain != STANDARD or depth > _DEEPEST:
        return False
    if node.op in _NORM_MEANS:
        return bool(node.integer("keepdims", 1)) and _is_over_last(value, node)
    if node.op not in _NORM_STEPS:
        return False
    terms = [resolve(value.frame, name) for name in node.inputs]
    moving = [term for term in terms if not _is_vector(term)]
    return len(moving) == 1 and _is_norm(moving[0], depth + 1)


def _is_over_last(value: Value, node: Node) -> bool:
    axes = node.integers("axes")
    if axes is None and node.input(1):
        tensor = resolve(value.frame, node.input(1)).tensor
        # The graph's own record of which axes is small, and its value is not needed here:
        # one axis, and keepdims, leave one number per token or one per entry.
        return tensor is not None and tensor.shape in {(), (1,)}
    return axes is not None and len(axes) == 1


def _is_of_shapes(value: Value, depth: int = 0) -> bool:
    """Whether a value is computed from shapes and constants alone, without counting."""
    node = value.node
    if value.tensor is not None or (node is not None and node.op == "Constant"):
        return _is_vector(value)
    if node is None or node.domain != STANDARD or depth > _DEEPEST:
        return False
    if node.op == "Shape":
        return True
    return node.op in _SHAPE_STEPS and all(
        _is_of_shapes(resolve(value.frame, name), depth + 1) for name in node.inputs if name
    )


def _is_fixed(value: Value) -> bool:
    """Whether a value is a constant, the same at every position and in every run."""
    for _ in range(_LONGEST):
        node = value.node
        if node is None:
            return value.tensor is not None
        if (node.domain, node.op) == (STANDARD, "Constant"):
            return True
        if (node.domain, node.op) not in _PASSING or not node.inputs or not node.input(0):
            return False
        value = resolve(value.frame, node.input(0))
    return False
