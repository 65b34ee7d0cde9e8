"""Turns: where a value is rotated, by one op or by a few plain ones.

Plain ops rotate as x * cos + turned(x) * sin, with turned(x) = [-x2, x1] of two halves of
the entries, or of neighbours; or apart, as [x1 * cos - x2 * sin, x2 * cos + x1 * sin].
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
    layout: how cos and sin lie for plain ops: "halves" or "repeated"; "pairs" where x1 and
            x2 are rotated apart.
    interleaved: whether x1 and x2 are neighbours, for plain ops.
    split:  where plain ops cut the entries in two; None where the graph computes it.
    trail:  the nodes of plain ops.
    """

    value: Value
    node: Node
    turned: Value
    cos: Value | None = None
    sin: Value | None = None
    layout: str = "pairs"
    interleaved: bool = False
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
    if (node.domain, node.op) in {(STANDARD, "Concat"), (STANDARD, "Reshape")}:
        return _apart(value, node, constants)
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
                interleaved=found[1] == "repeated",
                split=found[2],
                trail=Trail(nodes=nodes),
            )
    return None


def _apart(value: Value, node: Node, constants: Constants) -> Turn | None:
    """x1 and x2 that are rotated apart and put together again; None where they are not."""
    trail = Trail(nodes={(value.frame.body, node.index)})
    parts = _together(value, node, constants, trail)
    if parts is None:
        return None
    difference, total = (_step(part, trail) for part in parts)
    if difference is None or difference.op != "Sub" or total is None or total.op != "Add":
        return None
    products = [
        resolve(part.frame, name, trail)
        for part, made in zip(parts, (difference, total), strict=True)
        for name in made.inputs
    ]
    for product in products:
        _step(product, trail)
    for (x1, cos), (x2, sin) in _product_pairs(products[0], products[1]):
        first, second = _half(x1, constants, trail), _half(x2, constants, trail)
        if first is None or second is None or first.whole != second.whole:
            continue
        is_interleaved = node.op == "Reshape"
        split = _neighbours(first, second) if is_interleaved else _halves(first, second)
        expected = {(second, cos), (first, sin)}
        if split is None or not any(
            {(_half(one, constants, trail), by), (_half(other, constants, trail), also)} == expected
            for (one, by), (other, also) in _product_pairs(products[2], products[3])
        ):
            continue
        return Turn(
            value=value,
            node=node,
            turned=first.whole,
            cos=cos,
            sin=sin,
            interleaved=is_interleaved,
            split=split or None,
            trail=trail,
        )
    return None


def _together(
    value: Value, node: Node, constants: Constants, trail: Trail
) -> tuple[Value, Value] | None:
    """The two values of a Concat of halves, or of a stack of neighbours that is flattened."""
    axes = _LAST
    if node.op == "Reshape":
        value = resolve(value.frame, node.input(0), trail)
        stack = _step(value, trail)
        if stack is None or stack.op != "Concat":
            return None
        node, axes = stack, frozenset({-1, 4})
    if len(node.inputs) != 2 or node.integer("axis", 0) not in axes:
        return None
    parts = [resolve(value.frame, name, trail) for name in node.inputs]
    if axes is not _LAST:
        stacked = [_unstacked(part, constants, trail) for part in parts]
        parts = [part for part in stacked if part is not None]
    return (parts[0], parts[1]) if len(parts) == 2 else None


def _product_pairs(
    one: Value, other: Value
) -> Iterator[tuple[tuple[Value, Value], tuple[Value, Value]]]:
    """Every way to see two products as (entries, cos or sin) each."""
    for left in _factors(one):
        for right in _factors(other):
            yield left, right


def _halves(first: _Half, second: _Half) -> int | None:
    """Where two halves of a row were cut, 0 where the graph computes it; None for other pieces."""
    if (first.start, first.step, second.step) != (0, 1, 1) or first.stop != second.start:
        return None
    split = first.stop if isinstance(first.stop, int) else 0
    if first.stop == 0 or not (_is_end(second.stop) or second.stop == 2 * (split or -1)):
        return None
    return split


def _neighbours(first: _Half, second: _Half) -> int | None:
    """0 where two pieces are every second entry, from 0 and from 1 on; None for others."""
    starts = (first.start, second.start, first.step, second.step)
    is_all = _is_end(first.stop) and _is_end(second.stop)
    return 0 if starts == (0, 1, 2, 2) and is_all else None


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
    cut = _neighbours(first, second) if layout == "repeated" else _halves(first, second)
    return None if cut is None else (first.whole, layout, cut or None, trail)


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
    if node.op == "Gather":
        return _picked(value, node, whole, constants)
    if node.op != "Slice":
        return None
    inputs = [resolve(value.frame, name) for name in node.inputs[1:]]
    axes = constants.integers(inputs[2]) if len(inputs) > 2 else None
    steps = constants.integers(inputs[3]) if len(inputs) > 3 else (1,)
    if axes is None or len(axes) != 1 or axes[0] not in _LAST or steps is None:
        return None
    start, stop = (_bound(bound, constants) for bound in inputs[:2])
    return None if start is None or stop is None else _Half(whole, start, stop, steps[0])


def _picked(value: Value, node: Node, whole: Value, constants: Constants) -> _Half | None:
    """A half, or every second entry, that a Gather picks by constant places."""
    places = constants.integers(resolve(value.frame, node.input(1)))
    if node.integer("axis", 0) not in _LAST or places is None or len(places) < 2:
        return None
    start, step = places[0], places[1] - places[0]
    if step not in {1, 2} or places != tuple(range(start, start + step * len(places), step)):
        return None
    # Every second entry of all of them: the last place is the last but one, or the last.
    return _Half(whole, start, _END if step == 2 else start + len(places), step)


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
    """A bound of a Slice: a number, "half" where it is half of a last dim, _END for all of it."""
    known = constants.integers(value)
    if known is not None:
        return known[0] if len(known) == 1 and known[0] >= 0 else None
    times = 1
    for _ in range(_LONGEST):
        node = value.node
        if node is None or node.domain != STANDARD:
            return None
        if node.op == "Mul":
            # chunk: 1 and 2 times the half.
            value, factor = _by_constant(value, node, constants)
            if factor not in {1, 2}:
                return None
            times *= factor
            continue
        if node.op in _PASSING:
            value = resolve(value.frame, node.input(0))
            continue
        if node.op != "Div" or constants.integer(resolve(value.frame, node.input(1))) != 2:
            return None
        whole = resolve(value.frame, node.input(0))
        added = whole.node
        if added is not None and (added.domain, added.op) == (STANDARD, "Add"):
            # (n + 1) / 2, which is n / 2: a row in two halves has an even number of entries.
            whole, one = _by_constant(whole, added, constants)
            if one != 1:
                return None
        bounds: dict[int, int | str] = {1: "half", 2: _END}
        return bounds.get(times) if _is_last_dim(whole, constants) else None
    return None


def _by_constant(value: Value, node: Node, constants: Constants) -> tuple[Value, int | None]:
    """What an Add or a Mul changes by a whole number, and that number."""
    left, right = (resolve(value.frame, name) for name in node.inputs)
    number = constants.integer(right)
    return (left, number) if number is not None else (right, constants.integer(left))


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
