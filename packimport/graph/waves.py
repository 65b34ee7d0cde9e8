"""Waves: angles that a graph computes, back to their frequencies and the positions.

An angle is a product of positions and constants; it may lie doubled along its
last axis, and the frequencies may be chosen by the length of the call.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from packimport.graph.constants import Constants
from packimport.graph.frame import Frame, Trail, Value, resolve
from packimport.graph.growth import read_growth
from packimport.graph.lengths import Lengths, Switch
from packimport.graph.node import STANDARD, Node, Tensor
from packimport.graph.positions import PositionReader, Positions, shorter
from packimport.graph.repeats import Repeats
from packimport.graph.site import ByLength, Growth
from packimport.graph.trace import Unfollowed, origin, target
from packimport.rope.powers import inverse_powers

_SAME = frozenset({"Unsqueeze", "Squeeze", "Reshape", "Flatten", "Expand", "Transpose"})
_PRODUCTS = frozenset({"MatMul", "Mul", "Einsum"})
_DEEPEST = 60
# Einsums that are an outer product of frequencies and positions.
_OUTER = frozenset({"i,j->ij", "bi,j->bij", "bs,d->bsd", "bi,d->bid", "...i,j->...ij"})


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Angles:
    """Angles for one range of lengths: positions times `factors`.

    tensor: the stored frequencies, where they are one constant and nothing else.
    values: the frequencies, float64 of what the graph computes with.
    layout: "pairs", "halves" (a row twice) or "repeated" (each value twice).
    dtype:  the shortest float on the way.
    length: the lengths of call they are for; None for all.
    growth: where the frequencies follow the length of the call: how.
    """

    tensor: Tensor | None
    values: NDArray[np.float64] | None
    positions: Positions | None
    layout: str = "pairs"
    dtype: str = "float32"
    length: ByLength | None = None
    growth: Growth | None = None


@dataclass(frozen=True, slots=True)
class WaveReader:
    """Reads the angles of one file."""

    constants: Constants
    lengths: Lengths
    positions: PositionReader
    repeats: Repeats

    def angles(self, value: Value, trail: Trail) -> tuple[Angles, ...]:
        """The angles behind a value, one record per range of lengths.

        Raises Unfollowed where they are no product of positions and constants.
        """
        found = self._read(value, trail, 0)
        for angle in found:
            if angle.positions is None:
                raise Unfollowed(f"is computed from {value.name}, which depends on no position")
            if angle.values is None or angle.values.ndim != 1:
                raise Unfollowed(f"is computed from {value.name}, which holds no frequencies")
        return tuple(map(_halved, found))

    def _read(self, value: Value, trail: Trail, depth: int) -> tuple[Angles, ...]:
        if depth > _DEEPEST:
            raise Unfollowed("is computed by too many nodes")
        constant = self._constant(value)
        if constant is not None:
            return (constant,)
        node = value.node
        if node is None or node.domain != STANDARD:
            raise Unfollowed(self._lost(value))
        try:
            return (self._fed(value),)
        except Unfollowed:
            trail.nodes.add((value.frame.body, node.index))
        if node.op == "Cast":
            return self._cast(value, node, trail, depth)
        if node.op in _SAME:
            return self._reshaped(value, node, trail, depth)
        if node.op in _PRODUCTS:
            return self._product(value, node, trail, depth)
        growth = read_growth(value, self.constants, self.lengths, trail)
        if growth is not None:
            return (_grown(growth),)
        if node.op in {"Tile", "GatherND"}:
            return self._repeated(value, node, trail, depth)
        if node.op == "Div":
            return self._quotient(value, node, trail, depth)
        if node.op == "Concat":
            return self._doubled(value, node, trail, depth)
        if node.op in {"Where", "If"}:
            return self._chosen(value, node, trail, depth)
        raise Unfollowed(self._lost(value))

    def _input(self, value: Value, node: Node, index: int, trail: Trail) -> Value:
        return resolve(value.frame, node.input(index), trail)

    def _constant(self, value: Value) -> Angles | None:
        array = self.constants.array(value)
        if array is None or array.dtype.kind != "f":
            return None
        sizes = [size for size in array.shape if size != 1]
        if len(sizes) > 1:
            return _folded(value.name, array.astype(np.float64).reshape(-1, sizes[-1]))
        stored = value.tensor
        dtype = "float32" if array.dtype == np.float64 else str(array.dtype)
        values = array.astype(np.float64).ravel()
        flat = values if sizes else values.reshape(())
        return Angles(tensor=stored, values=flat, positions=None, dtype=dtype)

    def _fed(self, value: Value) -> Angles:
        positions = self.positions.read(value, floats=True)
        if positions.shift is not None:
            raise Unfollowed("is computed from positions that are shifted")
        dtype = positions.dtype if positions.dtype in {"float16", "bfloat16"} else "float32"
        return Angles(tensor=None, values=None, positions=positions, dtype=dtype)

    def _cast(self, value: Value, node: Node, trail: Trail, depth: int) -> tuple[Angles, ...]:
        made = target(node)
        if made not in {"float32", "float16", "bfloat16", "float64"}:
            raise Unfollowed(self._lost(value))
        return tuple(
            replace(angle, dtype=shorter(angle.dtype, made))
            for angle in self._read(self._input(value, node, 0, trail), trail, depth + 1)
        )

    def _reshaped(self, value: Value, node: Node, trail: Trail, depth: int) -> tuple[Angles, ...]:
        before = self._input(value, node, 0, trail)
        if node.op == "Reshape" and (each := self.repeats.flattened(before, trail)) is not None:
            inner = self._read(each, trail, depth + 1)
            return tuple(_doubled(angle, "repeated") for angle in inner)
        return self._read(before, trail, depth + 1)

    def _repeated(self, value: Value, node: Node, trail: Trail, depth: int) -> tuple[Angles, ...]:
        if node.op == "Tile" and self.repeats.is_by_batch(value, node):
            return self._read(self._input(value, node, 0, trail), trail, depth + 1)
        rows = self.repeats.gathered(value, trail)
        if rows is None:
            raise Unfollowed(self._lost(value))
        return tuple(_doubled(angle, "repeated") for angle in self._read(rows, trail, depth + 1))

    def _product(self, value: Value, node: Node, trail: Trail, depth: int) -> tuple[Angles, ...]:
        if node.op == "Einsum" and node.text("equation").replace(" ", "") not in _OUTER:
            raise Unfollowed(self._lost(value))
        sides = [self._read(self._input(value, node, i, trail), trail, depth + 1) for i in (0, 1)]
        return tuple(_times(left, right) for left in sides[0] for right in sides[1])

    def _quotient(self, value: Value, node: Node, trail: Trail, depth: int) -> tuple[Angles, ...]:
        divisors = self._read(self._input(value, node, 1, trail), trail, depth + 1)
        if any(d.values is None or d.positions is not None or not d.values.all() for d in divisors):
            raise Unfollowed(self._lost(value))
        inverted = [replace(d, tensor=None, values=_inverse(d.values)) for d in divisors]
        dividends = self._read(self._input(value, node, 0, trail), trail, depth + 1)
        return tuple(_times(left, right) for left in dividends for right in inverted)

    def _doubled(self, value: Value, node: Node, trail: Trail, depth: int) -> tuple[Angles, ...]:
        parts = {resolve(value.frame, name, trail) for name in node.inputs}
        if len(node.inputs) != 2 or len(parts) != 1:
            raise Unfollowed(self._lost(value))
        return tuple(
            _doubled(angle, "halves") for angle in self._read(parts.pop(), trail, depth + 1)
        )

    def _chosen(self, value: Value, node: Node, trail: Trail, depth: int) -> tuple[Angles, ...]:
        options = choices(value, node, self.lengths, trail)
        return tuple(
            replace(angle, length=narrowed(angle.length, length))
            for length, option in options
            for angle in self._read(option, trail, depth + 1)
        )

    def _lost(self, value: Value) -> str:
        return f"is computed from a value that {origin(value)}"


def _grown(growth: Growth) -> Angles:
    base = growth.base(growth.sample)
    values = inverse_powers(base, growth.pairs, 2 * growth.pairs).astype(np.float64)
    return Angles(tensor=None, values=values, positions=None, growth=growth)


def _halved(angle: Angles) -> Angles:
    """Angles whose frequencies are stored twice, in the form of those that are doubled later."""
    values = angle.values
    if angle.layout != "pairs" or values is None or len(values) % 2:
        return angle
    pairs = len(values) // 2
    for layout, one, other in (
        ("halves", values[:pairs], values[pairs:]),
        ("repeated", values[::2], values[1::2]),
    ):
        if np.array_equal(one, other):
            return replace(angle, layout=layout, values=one, tensor=None)
    return angle


def _folded(name: str, angles: NDArray[np.float64]) -> Angles:
    """The frequencies of angles that are constants: those of positions 0, 1, 2, ...

    Static shapes let an exporter fold them. Raises Unfollowed for any other rows.
    """
    frequencies = angles[1]
    positions = np.arange(len(angles)).astype(np.float32)
    expected = np.multiply.outer(positions, frequencies.astype(np.float32))
    if not np.allclose(angles, expected, rtol=2.0**-22, atol=0):
        raise Unfollowed(f"is computed from {name}, which holds no angles of positions from 0 on")
    return Angles(tensor=None, values=frequencies, positions=Positions(start="zero"))


def choices(
    value: Value, node: Node, lengths: Lengths, trail: Trail
) -> tuple[tuple[ByLength, Value], ...]:
    """The two values that an If or Where chooses from, each with its range of lengths.

    Raises Unfollowed where the condition is no comparison of the total length.
    """
    switch: Switch = lengths.switch(resolve(value.frame, node.input(0)))
    trail.nodes.add((value.frame.body, node.index))
    if node.op == "Where":
        options = [resolve(value.frame, node.input(i), trail) for i in (1, 2)]
    else:
        branches = value.frame.nested.get(node.index, {})
        options = [_handed(branches, name, value, trail) for name in ("then_branch", "else_branch")]
    return tuple(
        (ByLength(limit=switch.limit, long=switch.above == (i == 0)), option)
        for i, option in enumerate(options)
    )


def _handed(branches: object, name: str, value: Value, trail: Trail) -> Value:
    assert isinstance(branches, dict)
    branch: Frame | None = branches.get(name)
    if branch is None or value.output >= len(branch.body.outputs):
        raise Unfollowed(f"comes from an If without the output in its {name}")
    return resolve(branch, branch.body.outputs[value.output], trail)


def narrowed(inner: ByLength | None, outer: ByLength) -> ByLength:
    """Two conditions on the length as one. Raises Unfollowed where they differ."""
    if inner not in {None, outer}:
        raise Unfollowed("is chosen by two different conditions on the length")
    return outer


def _doubled(angle: Angles, layout: str) -> Angles:
    if angle.layout != "pairs":
        raise Unfollowed("lies doubled twice")
    return replace(angle, layout=layout)


def _times(left: Angles, right: Angles) -> Angles:
    if left.positions is not None and right.positions is not None:
        raise Unfollowed("is computed from positions times positions")
    if left.layout != "pairs" and right.layout != "pairs":
        raise Unfollowed("lies doubled twice")
    length = left.length
    if right.length is not None:
        length = right.length if length is None else narrowed(length, right.length)
    given = [side for side in (left, right) if side.values is not None]
    values, tensor = None, None
    if len(given) == 1:
        values, tensor = given[0].values, given[0].tensor
    elif left.growth is not None or right.growth is not None:
        raise Unfollowed("is computed from frequencies that follow the length, times a constant")
    elif given:
        # In float32, as the graph multiplies.
        one, other = (np.asarray(side.values, np.float32) for side in given)
        if one.ndim and other.ndim and one.shape != other.shape:
            raise Unfollowed("is computed from constants of different widths")
        values = np.asarray(one * other, np.float64)
    return Angles(
        tensor=tensor,
        values=values,
        positions=left.positions or right.positions,
        layout=left.layout if right.layout == "pairs" else right.layout,
        dtype=shorter(left.dtype, right.dtype),
        length=length,
        growth=left.growth or right.growth,
    )


def _inverse(values: NDArray[np.float64] | None) -> NDArray[np.float64]:
    assert values is not None
    return np.asarray(np.float32(1) / values.astype(np.float32), np.float64)
