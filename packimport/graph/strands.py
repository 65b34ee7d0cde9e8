"""Strands: a value that is cos or sin, back to the stored table or the frequencies behind it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from packimport.graph.columns import ColumnReader
from packimport.graph.constants import Constants
from packimport.graph.frame import Trail, Value, resolve
from packimport.graph.lengths import Lengths
from packimport.graph.node import STANDARD, Node
from packimport.graph.positions import PositionReader
from packimport.graph.rows import RowReader
from packimport.graph.sections import COUNTS, SectionReader, sections_of
from packimport.graph.strand import Factor, Strand
from packimport.graph.trace import Unfollowed, check_cast, origin, target
from packimport.graph.waves import WaveReader, choices, narrowed

_SAME = frozenset({"Unsqueeze", "Squeeze", "Reshape", "Flatten", "Expand"})
_FLOATS = frozenset({"float32", "float16", "bfloat16", "float64"})
_DEEPEST = 60


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
        read = self._readers.get(node.op)
        if read is not None:
            return read(value, node, trail, depth)
        if node.op == "Reshape":
            each = self.waves.repeats.flattened(before, trail)
            if each is not None:
                return tuple(
                    _doubled(strand, "repeated") for strand in self.read(each, trail, depth + 1)
                )
        if node.op == "Tile" and self.waves.repeats.is_by_batch(value, node):
            return self.read(before, trail, depth + 1)
        change = {"Cast": _cast, **self._rows.readers}.get(node.op)
        if change is None and node.op not in _SAME:
            raise Unfollowed(origin(value))
        strands = self.read(before, trail, depth + 1)
        if change is None:
            return strands
        return tuple(change(value, node, strand) for strand in strands)

    @property
    def _readers(self) -> Mapping[str, Callable[[Value, Node, Trail, int], tuple[Strand, ...]]]:
        """What reads on behind an op that joins, chooses or moves entries."""
        return {
            "Where": self._chosen,
            "If": self._chosen,
            "Mul": self._scaled,
            "Concat": self._doubled,
            "Transpose": self._around,
        }

    def _around(self, value: Value, node: Node, trail: Trail, depth: int) -> tuple[Strand, ...]:
        """What a Transpose makes: entries doubled by way of rows, or tokens before entries."""
        each = self.waves.repeats.around(value, trail)
        if each is None:
            # onnxruntime's optimizer moves the Transpose of angles behind Cos and Sin.
            before = self.read(resolve(value.frame, node.input(0), trail), trail, depth + 1)
            # Or it lets heads, of which cos has one, and tokens change places.
            is_turn = node.integers("perm") in {(0, 2, 1), (0, 2, 1, 3)}
            if not is_turn or any(strand.angles is None for strand in before):
                raise Unfollowed(origin(value))
            return before
        return tuple(_doubled(strand, "repeated") for strand in self.read(each, trail, depth + 1))

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
    def _rows(self) -> RowReader:
        return RowReader(self.constants, self.lengths, self.positions, self.waves.repeats)

    @property
    def columns(self) -> ColumnReader:
        """Reads tables by column."""
        return ColumnReader(self.constants, self.positions)


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
