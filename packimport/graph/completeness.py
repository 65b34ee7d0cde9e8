"""Completeness: what no finder has read, so that nothing that may rotate is passed over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from packimport.graph import ryzen_ai
from packimport.graph.attention import Attention, Track, plain_attention, unserved
from packimport.graph.body import Body
from packimport.graph.frame import Frame
from packimport.graph.node import MICROSOFT, STANDARD
from packimport.graph.ops import OWN_TABLE, READ, is_attention, refusal
from packimport.graph.rotation import Rotation, Scene, layers_of
from packimport.graph.site import Unread

_WAVES = frozenset({(STANDARD, "Cos"), (STANDARD, "Sin")})


def unread_ops(scene: Scene, rotations: list[Rotation]) -> Iterator[Unread]:
    """Every op, at any depth, that may rotate and that no finder has looked at."""
    layers = {(a.frame.body, a.node.index): a.layer for a in scene.attentions}
    known = {node for rotation in rotations for node in rotation.trail.nodes}
    seen = {frame.body for frame in scene.main.everything()}
    for body in scene.file.bodies():
        if body not in seen:
            yield from _unseen(scene, body)
            continue
        for kind, found in body.ops.items():
            if kind in READ or (kind in scene.file.defined and kind in scene.file.callable):
                continue
            reason = refusal(kind)
            if reason is None:
                continue
            is_wave = kind in _WAVES
            indexes = [i for i in found if not (is_wave and (body, i) in known)]
            # One record per layer, else one for all nodes of the op.
            is_layer = is_attention(kind) and any((body, i) in layers for i in indexes)
            more = len(indexes) - 1
            tail = f" ({more} more such nodes)" if more > 0 and not is_layer else ""
            for index in indexes if is_layer else indexes[:1]:
                layer = layers.get((body, index))
                yield scene.unread(body.node(index), f"{kind[1]} {reason}{tail}", layer)


def _unseen(scene: Scene, body: Body) -> Iterator[Unread]:
    """What may rotate in a body that no call is known of: a function with attributes."""
    where = "is in a function that is not followed"
    for kind, indexes in body.ops.items():
        if kind not in scene.file.defined and (kind in READ or refusal(kind)):
            yield scene.unread(body.node(indexes[0]), f"{kind[1]} {where}")
    yield from (scene.unread(node, where) for node in plain_attention(body))


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


def unread_layers(scene: Scene, rotations: list[Rotation]) -> Iterator[Unread]:
    """Every attention layer that is not understood, or whose q and k are not rotated alike.

    rotations: those that were read; what is compiled has layers of its own.
    """
    for attention in scene.attentions:
        if attention.is_read and (reason := attention.unfollowed or _oddly(attention)):
            yield scene.unread(attention.node, reason, attention.layer)
    yield from _uneven(scene, rotations)
    yield from _lopsided(scene, rotations)
    for layer, name in unserved(scene.file.main, scene.tracks, scene.hints):
        for body in scene.file.bodies():
            for index in body.takers(frozenset({name})).get(name, ())[:1]:
                node = body.node(index)
                if (node.domain, node.op) in ryzen_ai.DISPATCH:
                    continue  # it has a record of its own
                reason = f"takes the key cache {name} and is no attention op that is read"
                yield scene.unread(node, reason, layer)


def _uneven(scene: Scene, rotations: list[Rotation]) -> Iterator[Unread]:
    """Every way through the graph that has other layers than the one with the most."""
    most = max((layers_of(track) for track in scene.tracks), key=len, default=())
    compiled = {
        layer
        for rotation in rotations
        if (rotation.node.domain, rotation.node.op) in ryzen_ai.DISPATCH
        for layer in rotation.layers
    }
    most = max((most, tuple(sorted(compiled))), key=len)
    for track in scene.tracks:
        layers = layers_of(track)
        if layers != most and all(attention.layer is not None for attention in track):
            lost = sorted(set(most) - set(layers))
            reason = f"belongs to a branch that lacks the layers {lost} of another branch"
            yield scene.unread(track[0].node, reason, lost[0] if lost else None)


def _lopsided(scene: Scene, rotations: list[Rotation]) -> Iterator[Unread]:
    """Every `If` with a branch that lacks layers of the other one, and that is no track.

    A branch without any attention node is none: it may hold compiled nodes, or nothing.
    """
    attended: dict[Frame, set[int]] = {}
    for attention in scene.attentions:
        layer = attention.layer
        attended.setdefault(attention.frame, set()).update(() if layer is None else {layer})
    compiled = {
        rotation.frame: set[int]()
        for rotation in rotations
        if (rotation.node.domain, rotation.node.op) in ryzen_ai.DISPATCH
    }
    for rotation in rotations:
        if rotation.frame in compiled:
            compiled[rotation.frame].update(rotation.layers)
    for frame in scene.main.everything() if attended or compiled else ():
        for index, branches in frame.nested.items():
            inside = {name: list(branch.everything()) for name, branch in branches.items()}
            held = {
                name: set[int]().union(*(d.get(f, ()) for d in (attended, compiled) for f in all_))
                for name, all_ in inside.items()
            }
            every = set[int]().union(*held.values())
            for name, layers in held.items():
                lost = sorted(every - layers)
                # What is told of already: a track, and a compiled node that is not read.
                is_told = any(f in attended or _is_opaque(f, compiled) for f in inside[name])
                if lost and not is_told:
                    reason = f"has a {name} without the layers {lost} of the other branch"
                    yield scene.unread(frame.body.node(index), reason, lost[0])


def _is_opaque(frame: Frame, compiled: Mapping[Frame, set[int]]) -> bool:
    """Whether a frame has compiled nodes, of which none is read."""
    return frame not in compiled and any(kind in ryzen_ai.DISPATCH for kind in frame.body.ops)


def unrotated(track: Track) -> tuple[int, ...]:
    """The layers of a track that are understood and that nothing rotates."""
    return layers_of(
        attention
        for attention in track
        if attention.is_read
        and attention.unfollowed is None
        and attention.do_rotary == 0
        and not any(attention.turns)
    )


def _oddly(attention: Attention) -> str | None:
    """Why the rotations of a layer don't add up; None where they do."""
    if (attention.node.domain, attention.node.op) in OWN_TABLE:
        return None
    sides = [side for side, _, _ in attention.turns]
    query, key = sides.count("query"), sides.count("key")
    if attention.do_rotary:
        return "rotates what a RotaryEmbedding has rotated before" if query or key else None
    inputs = attention.inputs
    if (
        query
        and inputs is not None
        and (inputs.key is None or not attention.node.input(inputs.key))
    ):
        return "takes q, k and v in one value, rotated as a whole"
    if query != key or query > 1:
        return f"takes a query that is rotated {query} times and a key that is rotated {key} times"
    return None
