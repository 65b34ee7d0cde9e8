"""Turns: where a value is rotated, by one op or by a few plain ones.

Plain ops rotate as x * cos + turned(x) * sin, with turned(x) = [-x2, x1] of two halves of
the entries, or of neighbours.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from packimport.graph.constants import Constants
from packimport.graph.frame import Trail, Value, resolve
from packimport.graph.node import STANDARD, Node
from packimport.graph.ops import ROTATING_OPS

# Axes of the entries of a head, in [batch, heads, tokens, entries].
_LAST = frozenset({-1, 3})
_END = 2**30
_PASSING = frozenset({"Cast", "Unsqueeze", "Squeeze", "Reshape", "Floor", "Identity"})
_LONGEST = 20


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Turn:
    """One rotation on the way to an attention.

    value:  what the rotation makes. node: the op, or the Add of plain ops.
    turned: what it rotates.
    cos, sin: the values of plain ops; None for an op, which has them as inputs.
    layout: how cos and sin lie for plain ops: "halves" or "repeated".
    split:  where plain ops cut the entries in two; None where the graph computes it.
    trail:  the nodes of plain ops.
    """

    value: Value
    node: Node
    turned: Value
    cos: Value | None = None
    sin: Value | None = None
    layout: str = "pairs"
    split: int | None = None
    trail: Trail


@dataclass(frozen=True, slots=True)
class _Half:
    """A piece of x: entries start .. stop in steps; "half" where the graph computes a bound."""

    whole: Value
    start: int | str
    stop: int | str
    step: int


def turn_of(value: Value, constants: Constants) -> Turn | None:
    """The rotation that makes a value; None where none does."""
    node = value.node
    if node is None:
        return None
    trail = Trail(nodes={(value.frame.body, node.index)})
    if (node.domain, node.op) in ROTATING_OPS:
        turned = resolve(value.frame, node.input(ROTATING_OPS[node.domain, node.op]))
        return Turn(value=value, node=node, turned=turned, trail=trail)
    if (node.domain, node.op) != (STANDARD, "Add"):
        return None
    left, right = (resolve(value.frame, name, trail) for name in node.inputs)
    for straight, crossed in ((left, right), (right, left)):
        found = _plain(value, node, straight, crossed, constants)
        if found is not None:
            return found
    return None


def _plain(
    value: Value, node: Node, straight: Value, crossed: Value, constants: Constants
) -> Turn | None:
    for x, cos in _factors(straight):
        for turned, sin in _factors(crossed):
            found = _turned(turned, constants)
            if found is None or found[0] != x:
                continue
            products = [product.node for product in (straight, crossed)]
            nodes = {(value.frame.body, node.index), *found[3].nodes}
            for place, product in zip((straight, crossed), products, strict=True):
                assert product is not None
                nodes.add((place.frame.body, product.index))
            return Turn(
                value=value,
                node=node,
                turned=x,
                cos=cos,
                sin=sin,
                layout=found[1],
                split=found[2],
                trail=Trail(nodes=nodes),
            )
    return None


def _factors(value: Value) -> Iterator[tuple[Value, Value]]:
    """Both ways to see a product as (entries, cos or sin)."""
    node = value.node
    if node is None or (node.domain, node.op) != (STANDARD, "Mul"):
        return
    left, right = (resolve(value.frame, name) for name in node.inputs)
    yield left, right
    yield right, left


def _turned(value: Value, constants: Constants) -> tuple[Value, str, int | None, Trail] | None:
    """x, layout, split and nodes of a value that is turned(x); None for another one."""
    trail = Trail()
    node = _step(value, trail)
    if node is None:
        return None
    layout = "halves"
    if node.op == "Reshape":
        layout = "repeated"
        value = resolve(value.frame, node.input(0))
        node = _step(value, trail)
    if node is None or node.op != "Concat" or len(node.inputs) != 2:
        return None
    if node.integer("axis", 0) not in (_LAST if layout == "halves" else {-1, 4}):
        return None
    parts = [resolve(value.frame, name) for name in node.inputs]
    if layout == "repeated":
        stacked = [_unstacked(part, constants, trail) for part in parts]
        if stacked[0] is None or stacked[1] is None:
            return None
        parts = [part for part in stacked if part is not None]
    negated = _step(parts[0], trail)
    if negated is None or negated.op != "Neg":
        return None
    second = _half(resolve(parts[0].frame, negated.input(0)), constants, trail)
    first = _half(parts[1], constants, trail)
    if first is None or second is None or first.whole != second.whole:
        return None
    if layout == "repeated":
        is_turn = (first.start, second.start, first.step, second.step) == (0, 1, 2, 2)
        is_turn &= _is_end(first.stop) and _is_end(second.stop)
        return (first.whole, layout, None, trail) if is_turn else None
    if (first.start, first.step, second.step) != (0, 1, 1) or first.stop != second.start:
        return None
    split = first.stop if isinstance(first.stop, int) else None
    is_turn = split != 0 and (_is_end(second.stop) or second.stop == 2 * (split or -1))
    return (first.whole, layout, split, trail) if is_turn else None


def _is_end(stop: int | str) -> bool:
    return isinstance(stop, int) and stop >= _END


def _step(value: Value, trail: Trail) -> Node | None:
    node = value.node
    if node is None or node.domain != STANDARD:
        return None
    trail.nodes.add((value.frame.body, node.index))
    return node


def _unstacked(value: Value, constants: Constants, trail: Trail) -> Value | None:
    """What lies behind an Unsqueeze of a new last axis."""
    node = _step(value, trail)
    if node is None or node.op != "Unsqueeze":
        return None
    axes = constants.integers(resolve(value.frame, node.input(1))) or node.integers("axes")
    return resolve(value.frame, node.input(0)) if axes in {(-1,), (4,)} else None


def _half(value: Value, constants: Constants, trail: Trail) -> _Half | None:
    node = _step(value, trail)
    if node is None:
        return None
    whole = resolve(value.frame, node.input(0))
    if node.op == "Split":
        return _split(value, node, whole, constants)
    if node.op != "Slice":
        return None
    inputs = [resolve(value.frame, name) for name in node.inputs[1:]]
    axes = constants.integers(inputs[2]) if len(inputs) > 2 else None
    steps = constants.integers(inputs[3]) if len(inputs) > 3 else (1,)
    if axes is None or len(axes) != 1 or axes[0] not in _LAST or steps is None:
        return None
    start, stop = (_bound(bound, constants) for bound in inputs[:2])
    return None if start is None or stop is None else _Half(whole, start, stop, steps[0])


def _split(value: Value, node: Node, whole: Value, constants: Constants) -> _Half | None:
    """A half that a Split in two equal pieces makes."""
    if node.integer("axis", 0) not in _LAST or len(node.outputs) != 2:
        return None
    size: int | str = "half"
    if node.input(1):
        sizes = constants.integers(resolve(value.frame, node.input(1)))
        if sizes is None or len(set(sizes)) != 1:
            return None
        size = sizes[0]
    return _Half(whole, size, _END, 1) if value.output else _Half(whole, 0, size, 1)


def _bound(value: Value, constants: Constants) -> int | str | None:
    """A bound of a Slice: a number, or "half" where it is half of a last dim."""
    known = constants.integers(value)
    if known is not None:
        return known[0] if len(known) == 1 and known[0] >= 0 else None
    for _ in range(_LONGEST):
        node = value.node
        if node is None or node.domain != STANDARD:
            return None
        if node.op in _PASSING:
            value = resolve(value.frame, node.input(0))
            continue
        if node.op != "Div" or constants.integer(resolve(value.frame, node.input(1))) != 2:
            return None
        return "half" if _is_last_dim(resolve(value.frame, node.input(0)), constants) else None
    return None


def _is_last_dim(value: Value, constants: Constants) -> bool:
    """Whether a value is the last dim of a shape, which may have been reordered."""
    index = 0
    is_picked = False
    for _ in range(_LONGEST):
        node = value.node
        if node is None or node.domain != STANDARD:
            return False
        if node.op == "Shape":
            return (index in _LAST) if is_picked else node.integer("start", 0) in _LAST
        if node.op == "Gather":
            indexes = constants.integers(resolve(value.frame, node.input(1))) or ()
            if not is_picked and len(indexes) != 1:
                return False
            if not -len(indexes) <= index < len(indexes):
                return False
            index, is_picked = indexes[index], True
        elif node.op not in _PASSING:
            return False
        value = resolve(value.frame, node.input(0))
    return False
