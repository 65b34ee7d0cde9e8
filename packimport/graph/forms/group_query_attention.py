"""GroupQueryAttention of com.microsoft, which rotates q and k by itself (do_rotary = 1).

Inputs 7 and 8 are cos and sin [rows, pairs]; it rotates 2 * pairs entries of each
head. Position ids may come as input 9; without them a position is the count of
tokens before it. Source: onnxruntime 1.32, the op's documentation.
"""

from __future__ import annotations

from collections.abc import Iterator

from packimport.graph.attention import Attention
from packimport.graph.rotation import Rotation, Scene, flag, is_set, layers_of, read_tables
from packimport.graph.site import Unread
from packimport.graph.trace import Unfollowed, check_positions

FORM = "GroupQueryAttention"
_COS, _SIN, _POSITIONS = 7, 8, 9


def find(scene: Scene) -> Iterator[Rotation | Unread]:
    """A Rotation or an Unread for each node that rotates; nothing for those that don't."""
    for attention in scene.attentions:
        if not attention.is_read:
            continue
        try:
            if is_set("do_rotary", attention.do_rotary):
                yield _read(scene, attention)
        except Unfollowed as error:
            yield scene.unread(attention.node, str(error), attention.layer)


def _read(scene: Scene, attention: Attention) -> Rotation:
    node = attention.node
    tables = read_tables(scene, node, _COS, _SIN)
    if node.input(_POSITIONS):
        try:
            check_positions(scene.file.main, node.input(_POSITIONS), scene.hints.position_ids)
        except Unfollowed as error:
            raise Unfollowed(f"its position ids {error}") from error
    return Rotation(
        form=FORM,
        node=node,
        layers=layers_of([attention]),
        encoding="pairs",
        interleaved=flag(node, "rotary_interleaved"),
        rotary_dim=2 * tables.cos.shape[1],
        tables=tables,
    )
