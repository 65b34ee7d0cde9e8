"""RotaryEmbedding of com.microsoft: a node of its own for q, another for k.

Inputs: x, position ids, cos and sin [rows, pairs]. Without rotary_embedding_dim it
cuts x into heads of 2 * pairs entries and rotates them whole. Source: onnxruntime
1.32, the op's documentation.
"""

from __future__ import annotations

from collections.abc import Iterator

from packimport.graph.attention import Attention
from packimport.graph.node import Node
from packimport.graph.ops import ROTARY_EMBEDDING
from packimport.graph.rotation import Rotation, Scene, flag, layers_of, read_tables
from packimport.graph.site import Unread
from packimport.graph.trace import Unfollowed, check_positions

FORM = "RotaryEmbedding"
_POSITIONS, _COS, _SIN = 1, 2, 3


def find(scene: Scene) -> Iterator[Rotation | Unread]:
    """A Rotation or an Unread for each node."""
    takers: dict[int, list[Attention]] = {}
    for attention in scene.attentions:
        for index in {node.index for node in (*attention.query, *attention.key)}:
            takers.setdefault(index, []).append(attention)
    for node in scene.file.main.nodes(*ROTARY_EMBEDDING):
        served = takers.get(node.index, [])
        try:
            if not served:
                raise Unfollowed("rotates a value that no attention node is known to take")
            yield _read(scene, node, served)
        except Unfollowed as error:
            layers = layers_of(served)
            yield scene.unread(node, str(error), layers[0] if layers else None)


def _read(scene: Scene, node: Node, served: list[Attention]) -> Rotation:
    tables = read_tables(scene, node, _COS, _SIN)
    try:
        check_positions(scene.file.main, node.input(_POSITIONS), scene.hints.position_ids)
    except Unfollowed as error:
        raise Unfollowed(f"its position ids {error}") from error
    whole = 2 * tables.cos.shape[1]
    stated = node.integer("rotary_embedding_dim", 0)
    if stated < 0 or stated % 2:
        raise Unfollowed(f"has rotary_embedding_dim = {stated}; an even number is allowed")
    return Rotation(
        form=FORM,
        node=node,
        layers=layers_of(served),
        encoding="pairs",
        interleaved=flag(node, "interleaved"),
        rotary_dim=stated or whole,
        head_dim=None if stated else whole,
        tables=tables,
    )
