"""Rotation: one node that rotates, and the constants behind it; and the scene of a finder."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from packimport.errors import shorten
from packimport.graph.attention import Attention, Track
from packimport.graph.constants import Constants
from packimport.graph.frame import Frame, Trail
from packimport.graph.node import Node
from packimport.graph.onnx_file import OnnxFile
from packimport.graph.positions import PositionReader
from packimport.graph.projections import Way
from packimport.graph.site import ByLength, Hints, TableSpans, Unread, Waves
from packimport.graph.spans import Spans
from packimport.graph.strands import StrandReader
from packimport.graph.trace import Offloaded, Unfollowed

_REASON_LENGTH = 400


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Scene:
    """What a finder looks at: one ONNX file, its attention layers, and what reads values."""

    file: OnnxFile
    spans: Spans
    hints: Hints
    constants: Constants
    positions: PositionReader
    strands: StrandReader
    main: Frame
    tracks: tuple[Track, ...]

    @property
    def attentions(self) -> tuple[Attention, ...]:
        """Every attention layer of every track."""
        return tuple(attention for track in self.tracks for attention in track)

    def unread(
        self,
        node: Node,
        reason: str | Unfollowed,
        layer: int | None = None,
        *,
        own_table: bool = False,
    ) -> Unread:
        """The record that `node` may rotate and is not read."""
        return Unread(
            graph=self.file.name,
            node=shorten(node.label, _REASON_LENGTH),
            op=shorten(node.op),
            reason=shorten(str(reason), _REASON_LENGTH),
            layer=layer,
            own_table=own_table,
            offloaded=isinstance(reason, Offloaded),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """The constants of a rotation for one range of lengths. The fields are those of `Site`."""

    encoding: str
    length: ByLength | None = None
    table: TableSpans | None = None
    waves: Waves | None = None
    mrope: tuple[int, ...] | None = None

    @property
    def pairs(self) -> int:
        """Pairs that it rotates."""
        if self.waves is not None:
            return len(self.waves.values)
        assert self.table is not None
        return self.table.pairs(self.encoding)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Rotation:
    """One node that rotates. The fields are those of `Site`; one site per part."""

    form: str
    frame: Frame
    node: Node
    layers: tuple[int, ...]
    sides: tuple[str, ...]
    interleaved: bool | None
    trailing: bool = False
    rotary_dim: int
    head_dim: int | None = None
    mrope: tuple[int, ...] | None = None
    parts: tuple[Part, ...]
    trail: Trail


def split_rows(part: Part, rows: int, limit: int) -> tuple[Part, ...]:
    """A table of two lengths one after the other, as its two parts.

    rows: of the first one. limit: up to how many tokens a call reads the first one.
    """
    table = part.table
    if table is None or part.length is not None:
        raise Unfollowed("its positions are shifted for a table that is no table of two lengths")
    if not 0 < rows < table.stop:
        raise Unfollowed(f"its positions are shifted by {rows}, in a table of {table.stop} rows")
    short = replace(
        part,
        length=ByLength(limit=limit, long=False),
        table=replace(table, stop=min(rows, limit)),
    )
    long = replace(part, length=ByLength(limit=limit, long=True), table=replace(table, start=rows))
    return short, long


def same_pairs(parts: tuple[Part, ...]) -> int:
    """How many pairs all parts have. Raises Unfollowed where they differ."""
    pairs = {part.pairs for part in parts}
    if len(pairs) != 1:
        raise Unfollowed(f"its tables by length have {sorted(pairs)} pairs")
    return pairs.pop()


def pairs_neighbours(interleaved: bool, way: Way | None) -> bool:
    """Whether neighbours of the projection are turned: at once, or sorted apart before."""
    is_sorted = way is not None and way.sorted
    if is_sorted and interleaved:
        raise Unfollowed("pairs neighbours that were sorted apart before")
    return interleaved or is_sorted


def same_sections(parts: tuple[Part, ...]) -> tuple[int, ...] | None:
    """The layout and the sections of all parts. Raises Unfollowed where they differ."""
    found = {part.mrope for part in parts}
    if len(found) != 1:
        raise Unfollowed("its tables by length have different sections")
    return found.pop()


def flag(node: Node, name: str) -> bool:
    """An attribute that is 0 or 1, 0 where it is left out. Raises Unfollowed as `is_set` does."""
    return is_set(name, node.integer(name, 0))


def is_set(name: str, value: int) -> bool:
    """An attribute's value as a flag. Raises Unfollowed for other numbers, which kernels take
    for 0.
    """
    if value not in {0, 1}:
        raise Unfollowed(f"has {name} = {value}; 0 and 1 are allowed")
    return value == 1


def layers_of(attentions: Iterable[Attention]) -> tuple[int, ...]:
    """The known layers of some attention nodes, ascending."""
    return tuple(sorted({a.layer for a in attentions if a.layer is not None}))
