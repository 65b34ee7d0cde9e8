"""Rotation in plain ops: x * cos + turned(x) * sin, as torch's exporters and optimum write it,
or the halves apart: x1 * cos - x2 * sin and x2 * cos + x1 * sin.

cos and sin are computed from frequencies at every call, or are rows of a stored table
whose entries lie doubled, or once where the halves are rotated apart. Source: graphs of
torch 2.13 (both exporters), optimum-onnx 0.1.0, and those after onnxruntime 1.32's optimizer.
"""

from __future__ import annotations

from collections.abc import Iterator

from packimport.graph.attention import Attention
from packimport.graph.frame import Frame, Trail
from packimport.graph.parts import Wanted, read_parts
from packimport.graph.projections import Way
from packimport.graph.rotation import (
    Rotation,
    Scene,
    layers_of,
    pairs_neighbours,
    same_pairs,
    same_sections,
)
from packimport.graph.site import Unread
from packimport.graph.trace import Unfollowed
from packimport.graph.turns import Turn

FORM = "plain ops"


def find(scene: Scene) -> Iterator[Rotation | Unread]:
    """A Rotation or an Unread for each node that ends a rotation."""
    seen: dict[tuple[Frame, int, str], None] = {}
    for attention in scene.attentions:
        for side, way, turn in attention.turns:
            key = (turn.value.frame, turn.node.index, side)
            if turn.cos is None or key in seen:
                continue
            seen[key] = None
            try:
                yield _read(scene, attention, side, way, turn)
            except Unfollowed as error:
                yield scene.unread(turn.node, error, attention.layer)


def _read(scene: Scene, attention: Attention, side: str, way: Way, turn: Turn) -> Rotation:
    assert turn.cos is not None
    assert turn.sin is not None
    wanted = Wanted(layout=turn.layout, per_token=True, from_zero=not attention.cache)
    trail = Trail(nodes=set(turn.trail.nodes))
    for value in (turn.cos, turn.sin):
        trail.values.add((value.frame.body, value.name))
    parts = tuple(read_parts(scene, turn.cos, turn.sin, wanted, trail))
    pairs = same_pairs(parts)
    if turn.split not in {None, pairs}:
        raise Unfollowed(f"cuts its entries at {turn.split}, and its cos has {pairs} pairs")
    return Rotation(
        form=FORM,
        frame=turn.value.frame,
        node=turn.node,
        layers=layers_of([attention]),
        sides=(side,),
        interleaved=pairs_neighbours(turn.interleaved, way),
        trailing=way.trailing,
        mrope=same_sections(parts),
        rotary_dim=2 * pairs,
        parts=parts,
        trail=trail,
    )
