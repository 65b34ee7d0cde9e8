"""Completeness: what no finder has read, so that nothing that may rotate is passed over."""

from __future__ import annotations

from collections.abc import Iterator

from packimport.graph.attention import Attention, plain_attention, unserved
from packimport.graph.node import MICROSOFT, STANDARD
from packimport.graph.ops import GROUP_QUERY_ATTENTION, ROTARY_EMBEDDING, is_attention, refusal
from packimport.graph.rotation import Scene, layers_of
from packimport.graph.site import Unread

_READ = frozenset({GROUP_QUERY_ATTENTION, ROTARY_EMBEDDING})
_PLAIN = "is part of an attention in plain ops, a form that is not read yet"


def unread_ops(scene: Scene) -> Iterator[Unread]:
    """Every op, at any depth, that may rotate and is not read there."""
    layers = {a.node.index: a.layer for a in scene.attentions}
    for body in scene.file.bodies():
        is_main = body is scene.file.main
        if not is_main:
            yield from (scene.unread(node, _PLAIN) for node in plain_attention(body))
        for kind, indexes in body.ops.items():
            if is_main and kind in _READ:
                continue
            reason = "is not in the main graph, and only that is read" if kind in _READ else None
            if reason is None and kind not in scene.file.defined:
                reason = refusal(kind)
            if reason is None:
                continue
            # One record per layer, else one for all nodes of the op.
            is_layer = is_main and is_attention(kind)
            more = len(indexes) - 1
            tail = f" ({more} more such nodes)" if more and not is_layer else ""
            for index in indexes if is_layer else indexes[:1]:
                layer = layers.get(index) if is_main else None
                yield scene.unread(body.node(index), f"{kind[1]} {reason}{tail}", layer)


def redefined_ops(scene: Scene) -> Iterator[Unread]:
    """Every local function that bears the name of an op, which may then do anything."""
    for domain, name in sorted(scene.file.defined):
        if domain in {STANDARD, MICROSOFT}:
            yield Unread(
                graph=scene.file.name,
                node=f"function {name}",
                op=name,
                reason=f"a local function of the domain {domain or 'ai.onnx'} takes an op's place",
            )


def unread_layers(scene: Scene) -> Iterator[Unread]:
    """Every attention layer that is not understood, or whose q and k are not rotated alike."""
    for attention in scene.attentions:
        if attention.node.op == "Softmax":
            yield scene.unread(attention.node, _PLAIN, attention.layer)
        elif attention.is_read and (reason := attention.unfollowed or _oddly(attention)):
            yield scene.unread(attention.node, reason, attention.layer)
    for layer, name in unserved(scene.file.main, scene.attentions, scene.hints):
        for body in scene.file.bodies():
            for index in body.consumers.get(name, ())[:1]:
                reason = f"takes the key cache {name} and is no attention op that is read"
                yield scene.unread(body.node(index), reason, layer)


def unrotated(scene: Scene) -> tuple[int, ...]:
    """The layers that are understood and that nothing rotates."""
    return layers_of(
        attention
        for attention in scene.attentions
        if attention.is_read
        and attention.unfollowed is None
        and attention.do_rotary == 0
        and not (attention.query or attention.key)
    )


def _oddly(attention: Attention) -> str | None:
    """Why the rotations of a layer don't add up; None where they do."""
    query, key = len(attention.query), len(attention.key)
    if attention.do_rotary:
        return "rotates what a RotaryEmbedding has rotated before" if query or key else None
    if query and not attention.node.input(1):
        return "takes q, k and v in one value, rotated as a whole"
    if query != key or query > 1:
        return f"takes a query that is rotated {query} times and a key that is rotated {key} times"
    return None
