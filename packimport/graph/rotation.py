"""Rotation: one node that rotates by two tables; and the scene that a finder looks at."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from packimport.errors import shorten
from packimport.graph.attention import Attention
from packimport.graph.node import Node
from packimport.graph.onnx_file import OnnxFile
from packimport.graph.site import Hints, TensorSpan, Unread
from packimport.graph.spans import Spans
from packimport.graph.trace import Constant, Unfollowed, constant

_REASON_LENGTH = 400


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Scene:
    """What a finder looks at: one ONNX file and the attention layers of its main graph."""

    file: OnnxFile
    spans: Spans
    hints: Hints
    attentions: tuple[Attention, ...]

    def unread(self, node: Node, reason: str, layer: int | None = None) -> Unread:
        """The record that `node` may rotate and is not read."""
        return Unread(
            graph=self.file.name,
            node=shorten(node.label, _REASON_LENGTH),
            op=shorten(node.op),
            reason=shorten(reason, _REASON_LENGTH),
            layer=layer,
        )


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Tables:
    """The two tables of a node: their spans, and the names their values have on the way to it."""

    cos: TensorSpan
    sin: TensorSpan
    names: frozenset[str]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Rotation:
    """One node that rotates. The fields are those of `Site`."""

    form: str
    node: Node
    layers: tuple[int, ...]
    encoding: str
    interleaved: bool
    rotary_dim: int
    head_dim: int | None = None
    tables: Tables


def read_tables(scene: Scene, node: Node, cos: int, sin: int) -> Tables:
    """The tables that a node takes as its inputs number `cos` and `sin`.

    Raises Unfollowed where they are not constants [rows, pairs] of one shape and dtype.
    """
    found: list[tuple[Constant, TensorSpan]] = []
    for what, index in (("cos", cos), ("sin", sin)):
        try:
            table = constant(scene.file.main, node.input(index))
            found.append((table, scene.spans.table(table.tensor)))
        except Unfollowed as error:
            raise Unfollowed(f"its {what} table {error}") from error
    (cos_table, cos_span), (sin_table, sin_span) = found
    if (cos_span.dtype, cos_span.shape) != (sin_span.dtype, sin_span.shape):
        raise Unfollowed(
            f"its tables differ: cos is {cos_span.dtype} {list(cos_span.shape)},"
            f" sin is {sin_span.dtype} {list(sin_span.shape)}"
        )
    return Tables(cos=cos_span, sin=sin_span, names=cos_table.names | sin_table.names)


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
