"""Attention ops of com.microsoft that rotate q and k by themselves (do_rotary = 1).

GroupQueryAttention, PagedAttention and the sparse ones. They take cos and sin
[rows, pairs] and rotate 2 * pairs entries of each head. Position ids may come as
an input; without them a position is the count of tokens before it. Source:
onnxruntime 1.32, the ops' documentation.
"""

from __future__ import annotations

from collections.abc import Iterator

from packimport.graph import ryzen_ai
from packimport.graph.attention import Attention
from packimport.graph.frame import Trail, resolve
from packimport.graph.ops import OWN_TABLE
from packimport.graph.parts import Wanted, read_parts, shifted
from packimport.graph.rotation import (
    Rotation,
    Scene,
    flag,
    is_set,
    layers_of,
    pairs_neighbours,
    same_pairs,
    split_rows,
)
from packimport.graph.site import Unread
from packimport.graph.trace import Unfollowed

FORM = "GroupQueryAttention"
_OWN = "makes a plain table of its own, which nothing can mend"
_WANTED = Wanted(layout="pairs", per_token=False)


def find(scene: Scene) -> Iterator[Rotation | Unread]:
    """A Rotation or an Unread for each node that rotates; nothing for those that don't."""
    for attention in scene.attentions:
        kind = (attention.node.domain, attention.node.op)
        if kind in ryzen_ai.GROUP_QUERY:
            continue
        try:
            if not is_set("do_rotary", attention.do_rotary):
                continue
            if kind in OWN_TABLE:
                yield scene.unread(attention.node, _OWN, attention.layer, own_table=True)
            else:
                yield read(scene, attention)
        except Unfollowed as error:
            yield scene.unread(attention.node, error, attention.layer)


def read(scene: Scene, attention: Attention) -> Rotation:
    """The rotation of a node with do_rotary = 1. Raises Unfollowed where it is not understood."""
    node, frame, inputs = attention.node, attention.frame, attention.inputs
    assert inputs is not None
    assert inputs.cos is not None
    assert inputs.sin is not None
    if node.integer("rotary_offset", 0):
        raise Unfollowed(f"has rotary_offset = {node.integer('rotary_offset', 0)}; 0 is allowed")
    trail = Trail(nodes={(frame.body, node.index)})
    cos, sin = (resolve(frame, node.input(i), trail) for i in (inputs.cos, inputs.sin))
    parts = read_parts(scene, cos, sin, _WANTED, trail)
    if inputs.positions is not None and node.input(inputs.positions):
        try:
            positions = scene.positions.read(resolve(frame, node.input(inputs.positions)))
        except Unfollowed as error:
            raise Unfollowed(f"its position ids {error}") from error
        parts = [made for part in parts for made in shifted(part, positions)]
    rows = scene.hints.long_rows
    if rows is not None and all(part.length is None for part in parts):
        parts = [made for part in parts for made in split_rows(part, rows, rows)]
    pairs = same_pairs(tuple(parts))
    return Rotation(
        form=node.op,
        frame=frame,
        node=node,
        layers=layers_of([attention]),
        sides=("query", "key"),
        interleaved=pairs_neighbours(flag(node, "rotary_interleaved"), attention.query_way),
        rotary_dim=2 * pairs,
        parts=tuple(parts),
        trail=trail,
    )
