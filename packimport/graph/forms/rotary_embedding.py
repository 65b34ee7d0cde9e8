"""Ops that rotate one value: a node of its own for q, another for k.

Of com.microsoft: RotaryEmbedding, MRotaryEmbedding and RMSNormRotary, which take x,
position ids, cos and sin [rows, pairs]. Without rotary_embedding_dim they cut x into
heads of 2 * pairs entries and rotate them whole. Source: onnxruntime 1.32, the ops'
documentation.

RotaryEmbedding of ONNX, opset 23 on: cos and sin are [rows, pairs] with position ids,
or [batch, tokens, pairs] without. Source: onnx 1.23, the operator's documentation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from packimport.graph.attention import Attention
from packimport.graph.frame import Frame, Trail, resolve
from packimport.graph.node import Node
from packimport.graph.ops import (
    MROTARY_EMBEDDING,
    NORM_ROTARY,
    ONNX_ROTARY_EMBEDDING,
    ROTARY_EMBEDDING,
    ROTATING_OPS,
)
from packimport.graph.parts import Wanted, read_parts, shifted
from packimport.graph.projections import Way
from packimport.graph.rotation import (
    Part,
    Rotation,
    Scene,
    flag,
    layers_of,
    pairs_neighbours,
    same_pairs,
    same_sections,
    split_rows,
)
from packimport.graph.site import Unread
from packimport.graph.trace import Unfollowed

FORM = "RotaryEmbedding"
ONNX_FORM = "RotaryEmbedding of ONNX"


@dataclass(frozen=True, slots=True)
class _Inputs:
    """Which inputs are what, and what the form is called."""

    form: str
    positions: int
    cos: int
    sin: int


_INPUTS: Mapping[tuple[str, str], _Inputs] = {
    ROTARY_EMBEDDING: _Inputs(FORM, 1, 2, 3),
    MROTARY_EMBEDDING: _Inputs("MRotaryEmbedding", 1, 2, 3),
    NORM_ROTARY: _Inputs("RMSNormRotary", 2, 3, 4),
    ONNX_ROTARY_EMBEDDING: _Inputs(ONNX_FORM, 3, 1, 2),
}


@dataclass(slots=True)
class _Served:
    """The attentions that take what a node makes, and how."""

    attentions: list[Attention]
    sides: set[str]
    way: Way


def find(scene: Scene) -> Iterator[Rotation | Unread]:
    """A Rotation or an Unread for each node."""
    takers: dict[tuple[Frame, int], _Served] = {}
    for attention in scene.attentions:
        for side, way, turn in attention.turns:
            if turn.cos is None:
                key = (turn.value.frame, turn.node.index)
                served = takers.setdefault(key, _Served([], set(), way))
                served.attentions.append(attention)
                served.sides.add(side)
    for frame in scene.main.everything():
        for kind in ROTATING_OPS:
            for node in frame.body.nodes(*kind):
                yield _found(scene, frame, node, takers.get((frame, node.index)))


def _found(scene: Scene, frame: Frame, node: Node, served: _Served | None) -> Rotation | Unread:
    try:
        if served is None:
            raise Unfollowed("rotates a value that no attention node is known to take")
        return _read(scene, frame, node, served)
    except Unfollowed as error:
        layers = layers_of(served.attentions) if served is not None else ()
        return scene.unread(node, error, layers[0] if layers else None)


def _read(scene: Scene, frame: Frame, node: Node, served: _Served) -> Rotation:
    inputs = _INPUTS[node.domain, node.op]
    trail = Trail(nodes={(frame.body, node.index)})
    parts = _parts(scene, frame, node, inputs, trail)
    whole = 2 * same_pairs(parts)
    stated = node.integer("rotary_embedding_dim", 0)
    if stated < 0 or stated % 2:
        raise Unfollowed(f"has rotary_embedding_dim = {stated}; an even number is allowed")
    _check_heads(node, served)
    is_onnx = inputs.form == ONNX_FORM
    return Rotation(
        form=inputs.form,
        frame=frame,
        node=node,
        layers=layers_of(served.attentions),
        sides=tuple(side for side in ("query", "key") if side in served.sides),
        interleaved=pairs_neighbours(flag(node, "interleaved"), served.way),
        trailing=served.way.trailing,
        rotary_dim=stated or whole,
        head_dim=None if stated or is_onnx else whole,
        mrope=_mrope(node) or same_sections(parts),
        parts=parts,
        trail=trail,
    )


# What attention ops call their heads: of the query, and of the key.
_HEADS: Mapping[str, tuple[str, ...]] = {
    "query": ("num_heads", "q_num_heads"),
    "key": ("kv_num_heads", "num_heads"),
}


def _check_heads(node: Node, served: _Served) -> None:
    """Raises Unfollowed where a node cuts its input into other heads than the attention.

    Entries of a head that is too long are not rotated, and no kernel says so. The key's heads
    may be repeated behind the node.
    """
    heads = node.integer("num_heads", 0)
    for attention in served.attentions if heads else ():
        for side in served.sides:
            names = [name for name in _HEADS[side] if attention.node.has(name)]
            taken = attention.node.integer(names[0], 0) if names else 0
            repeated = served.way.repeated if served.sides == {"key"} else None
            if repeated is not None and repeated > 0 and taken % repeated == 0:
                taken = repeated
            if taken not in {0, heads}:
                raise Unfollowed(
                    f"has num_heads = {heads}, and the attention takes {taken} heads of its {side}"
                )


def _parts(
    scene: Scene, frame: Frame, node: Node, inputs: _Inputs, trail: Trail
) -> tuple[Part, ...]:
    has_positions = bool(node.input(inputs.positions))
    if not has_positions and inputs.form != ONNX_FORM:
        raise Unfollowed("its position ids is left out")
    wanted = Wanted(layout="pairs", per_token=not has_positions)
    cos, sin = (resolve(frame, node.input(i), trail) for i in (inputs.cos, inputs.sin))
    parts = read_parts(scene, cos, sin, wanted, trail)
    if not has_positions:
        return tuple(parts)
    try:
        positions = scene.positions.read(resolve(frame, node.input(inputs.positions)))
    except Unfollowed as error:
        raise Unfollowed(f"its position ids {error}") from error
    parts = [made for part in parts for made in shifted(part, positions)]
    rows = scene.hints.long_rows
    if rows is not None and all(part.length is None for part in parts):
        parts = [made for part in parts for made in split_rows(part, rows, rows)]
    return tuple(parts)


def _mrope(node: Node) -> tuple[int, ...] | None:
    """The layout and the sections of positions in three axes; None for other ops."""
    if (node.domain, node.op) != MROTARY_EMBEDDING:
        return None
    return node.integer("mrope_layout", 0), *(node.integers("mrope_section") or ())
