"""Strands: a value that is cos or sin, back to the stored table or the frequencies behind it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from packimport.graph.columns import ColumnReader
from packimport.graph.constants import Constants
from packimport.graph.frame import Trail, Value, resolve
from packimport.graph.lengths import Lengths
from packimport.graph.node import STANDARD, Node, Tensor
from packimport.graph.positions import PositionReader, Positions
from packimport.graph.sections import COUNTS, SectionReader, sections_of
from packimport.graph.site import ByLength
from packimport.graph.trace import Unfollowed, check_cast, origin, target
from packimport.graph.waves import Angles, WaveReader, choices, narrowed

_SAME = frozenset({"Unsqueeze", "Squeeze", "Reshape", "Flatten", "Expand"})
_FLOATS = frozenset({"float32", "float16", "bfloat16", "float64"})
_DEEPEST = 60


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Factor:
    """What multiplies cos or sin: its value, and the constant that holds it."""

    value: float
    at: Value


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Strand:
    """cos or sin for one range of lengths: either a stored table or a function of angles.

    tensor:    the table; its last dim is entries, the others are rows.
    positions: how its rows are picked; None where it is handed on whole.
    function:  "Cos" or "Sin" of `angles`, by the node `label`.
    halved:    a doubled table of which the first half of each row is taken.
    rows:      how many of its rows a Slice leaves; None where it leaves all.
    mrope:     of positions in three axes: the layout, and how many pairs follow each; () for one.
    """

    tensor: Tensor | None = None
    positions: Positions | None = None
    halved: bool = False
    rows: int | None = None
    function: str = ""
    label: str = ""
    angles: Angles | None = None
    factors: tuple[Factor, ...] = ()
    layout: str = "pairs"
    length: ByLength | None = None
    mrope: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class StrandReader:
    """Reads cos and sin of one file. All layers may have one cos: each value is read once."""

    constants: Constants
    lengths: Lengths
    positions: PositionReader
    waves: WaveReader
    known: dict[Value, tuple[tuple[Strand, ...], Trail]] = field(default_factory=dict)

    def read(self, value: Value, trail: Trail, depth: int = 0) -> tuple[Strand, ...]:
        """What is behind a value, one strand per range of lengths. Raises Unfollowed."""
        if value not in self.known:
            passed = Trail()
            self.known[value] = self._read(value, passed, depth), passed
        strands, passed = self.known[value]
        trail.nodes.update(passed.nodes)
        trail.values.update(passed.values)
        return strands

    def _read(self, value: Value, trail: Trail, depth: int) -> tuple[Strand, ...]:
        if depth > _DEEPEST:
            raise Unfollowed("comes from too many nodes away")
        if value.tensor is not None:
            node = value.node
            if node is not None:
                trail.nodes.add((value.frame.body, node.index))
            return (Strand(tensor=value.tensor),)
        node = value.node
        if node is None or node.domain != STANDARD:
            raise Unfollowed(origin(value))
        trail.nodes.add((value.frame.body, node.index))
        before = resolve(value.frame, node.input(0), trail) if node.inputs else value
        if node.op in {"Cos", "Sin"}:
            return tuple(
                Strand(
                    function=node.op,
                    label=node.label,
                    angles=angles,
                    layout=angles.layout,
                    length=angles.length,
                )
                for angles in self.waves.angles(before, trail)
            )
        if node.op in {"Where", "If"}:
            return self._chosen(value, node, trail, depth)
        if node.op == "Mul":
            return self._scaled(value, node, trail, depth)
        if node.op == "Concat":
            return self._doubled(value, node, trail, depth)
        if node.op == "Reshape":
            each = self.waves.repeats.flattened(before, trail)
            if each is not None:
                return tuple(
                    _doubled(strand, "repeated") for strand in self.read(each, trail, depth + 1)
                )
        change = {"Cast": _cast, "Gather": self._gathered, "Slice": self._sliced}.get(node.op)
        if change is None and node.op not in _SAME:
            raise Unfollowed(origin(value))
        strands = self.read(before, trail, depth + 1)
        if change is None:
            return strands
        return tuple(change(value, node, strand) for strand in strands)

    def _scaled(self, value: Value, node: Node, trail: Trail, depth: int) -> tuple[Strand, ...]:
        # The constant is not on the trail: a scalar may serve many nodes, and `parts` gives
        # out only those that serve no other.
        left, right = 0, 1
        number = self.constants.scalar(resolve(value.frame, node.input(right)))
        if number is None:
            left, right = right, left
            number = self.constants.scalar(resolve(value.frame, node.input(right)))
        if number is None:
            raise Unfollowed(origin(value))
        strands = self.read(resolve(value.frame, node.input(left), trail), trail, depth + 1)
        if number != 1 and any(strand.angles is None for strand in strands):
            raise Unfollowed(f"is multiplied by {number:g} in {node.label}")
        factor = Factor(value=number, at=resolve(value.frame, node.input(right)))
        return tuple(
            strand if strand.angles is None else replace(strand, factors=(*strand.factors, factor))
            for strand in strands
        )

    def _doubled(self, value: Value, node: Node, trail: Trail, depth: int) -> tuple[Strand, ...]:
        if len(node.inputs) in COUNTS:
            return self._by_axis(value, node, trail, depth)
        parts = {resolve(value.frame, name, trail) for name in node.inputs}
        if len(node.inputs) != 2 or len(parts) != 1:
            raise Unfollowed(origin(value))
        return tuple(
            _doubled(strand, "halves") for strand in self.read(parts.pop(), trail, depth + 1)
        )

    def _by_axis(self, value: Value, node: Node, trail: Trail, depth: int) -> tuple[Strand, ...]:
        reader = SectionReader(self.constants, self.waves.repeats.ranks)
        source, sizes = reader.read(value, node, trail)
        return tuple(
            replace(strand, mrope=(0, *_sections(strand, sizes)))
            for strand in self.read(source, trail, depth + 1)
        )

    def _chosen(self, value: Value, node: Node, trail: Trail, depth: int) -> tuple[Strand, ...]:
        if node.op == "Where" and self.columns.mask(value, node) is not None:
            return self._masked(value, trail, depth)
        return tuple(
            replace(strand, length=narrowed(strand.length, length))
            for length, option in choices(value, node, self.lengths, trail)
            for strand in self.read(option, trail, depth + 1)
        )

    def _masked(self, value: Value, trail: Trail, depth: int) -> tuple[Strand, ...]:
        table, picked, mrope = self.columns.read(value, trail)
        strands = self.read(table, trail, depth + 1)
        if any(strand.tensor is None or strand.positions is not None for strand in strands):
            raise Unfollowed(origin(value))
        return tuple(replace(strand, positions=picked, mrope=mrope) for strand in strands)

    @property
    def columns(self) -> ColumnReader:
        """Reads tables by column."""
        return ColumnReader(self.constants, self.positions)

    def _gathered(self, value: Value, node: Node, strand: Strand) -> Strand:
        """Rows of a table, picked by the positions."""
        if strand.tensor is None or strand.positions is not None:
            raise Unfollowed(origin(value))
        if node.integer("axis", 0) not in {0, len(strand.tensor.shape) - 2}:
            raise Unfollowed(f"{origin(value)}, which picks along another axis than the rows")
        try:
            picked = self.positions.read(resolve(value.frame, node.input(1)))
        except Unfollowed as error:
            raise Unfollowed(f"is picked by position ids that {error}") from error
        return replace(strand, positions=picked)

    def _sliced(self, value: Value, node: Node, strand: Strand) -> Strand:
        """The first rows of a table, or the first half of a doubled row."""
        inputs = [resolve(value.frame, name) for name in node.inputs[1:]]
        starts, axes, steps = (
            self.constants.integers(inputs[i]) if len(inputs) > i else None for i in (0, 2, 3)
        )
        rank = len(strand.tensor.shape) if strand.tensor is not None else 0
        if strand.angles is not None:
            return self._halved(value, node, strand)
        if starts != (0,) or steps not in {None, (1,)} or axes is None or len(axes) != 1:
            raise Unfollowed(origin(value))
        if axes[0] in {-1, rank - 1} and rank:
            ends = self.constants.integers(inputs[1])
            assert strand.tensor is not None
            if ends != (strand.tensor.shape[-1] // 2,) or strand.halved:
                raise Unfollowed(origin(value))
            return replace(strand, halved=True)
        if strand.tensor is None or strand.positions is not None:
            raise Unfollowed(origin(value))
        if axes[0] not in {0, rank - 2, -2}:
            raise Unfollowed(origin(value))
        return replace(strand, rows=self._rows_left(value, inputs[1], node, strand))

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
        is_half = (starts, ends) == ((0,), (len(strand.angles.values),)) and steps in {None, (1,)}
        ranks = self.waves.repeats.ranks
        is_last = axes is not None and len(axes) == 1
        is_last = is_last and ranks.is_axis(axes[0], ranks.of(before), -1) if axes else False
        if not (is_half and is_last and strand.layout == "halves"):
            raise Unfollowed(origin(value))
        return replace(strand, layout="pairs")


def rows_up_to(end: int, rows: int) -> int:
    """How many of `rows` rows a Slice from row 0 to `end` leaves, as ONNX counts ends."""
    return min(rows, max(0, end + rows if end < 0 else end))


def _sections(strand: Strand, sizes: tuple[int, ...]) -> tuple[int, ...]:
    values = strand.angles.values if strand.angles is not None else None
    if strand.mrope or values is None:
        raise Unfollowed("is cut into sections, and is not computed from positions")
    return sections_of(sizes, strand.layout, len(values))


def _doubled(strand: Strand, layout: str) -> Strand:
    if strand.layout != "pairs":
        raise Unfollowed("lies doubled twice")
    return replace(strand, layout=layout)


def _cast(value: Value, node: Node, strand: Strand) -> Strand:
    if strand.tensor is not None:
        check_cast(node, strand.tensor.dtype)
    elif target(node) not in _FLOATS:
        raise Unfollowed(origin(value))
    return strand
