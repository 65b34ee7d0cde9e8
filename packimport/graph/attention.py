"""Attention: the attention layers of a graph, numbered, and what rotates their q and k."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from packimport.graph.body import Body
from packimport.graph.constants import Constants
from packimport.graph.frame import Frame, Value, resolve
from packimport.graph.node import STANDARD, Node
from packimport.graph.onnx_file import OnnxFile
from packimport.graph.ops import (
    OWN_TABLE,
    ROTARY_EMBEDDING,
    SOFTMAX,
    AttentionInputs,
    inputs_of,
    is_attention,
)
from packimport.graph.projections import Way, way_of
from packimport.graph.site import Hints
from packimport.graph.spans import Spans
from packimport.graph.turns import Turn

_LONGEST = 100
# What stands between the scores of an attention in plain ops and its second MatMul.
_AFTER_SOFTMAX = frozenset({"Cast", "Dropout", "Identity", "Where", "Slice", "Reshape", "Mul"})
# And between its first MatMul and the Softmax: scale, mask, softcap, sinks.
_BEFORE_SOFTMAX = frozenset(
    {"Cast", "Identity", "Add", "Mul", "Div", "Where", "Tanh", "Reshape", "Concat", "Sub", "Max"}
)
_MATMULS = frozenset({"MatMul", "FusedMatMul", "Einsum"})


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Attention:
    """One attention layer.

    node:       the attention op, or the Softmax of one in plain ops.
    do_rotary:  the attribute: 1 where the node rotates by itself, 0 where not.
    layer:      its number; None where nothing tells it.
    cache:      the graph input that holds its keys; "" where it has none that is known.
    query_way, key_way: how q and k come to it; None where the layer is not followed.
    unfollowed: why the layer is not understood; None where it is.
    """

    frame: Frame
    node: Node
    layer: int | None
    cache: str
    do_rotary: int = 0
    query_way: Way | None = None
    key_way: Way | None = None
    unfollowed: str | None = None

    @property
    def inputs(self) -> AttentionInputs | None:
        """Which inputs of the op are what; None for one that is not read, and plain ops."""
        return inputs_of((self.node.domain, self.node.op), len(self.node.inputs))

    @property
    def is_plain(self) -> bool:
        """Whether it is written in plain ops."""
        return (self.node.domain, self.node.op) == SOFTMAX

    @property
    def is_read(self) -> bool:
        """Whether the node is of an op type that is read, in a form that is."""
        kind = (self.node.domain, self.node.op)
        return self.is_plain or self.inputs is not None or kind in OWN_TABLE

    @property
    def turns(self) -> Iterator[tuple[str, Way, Turn]]:
        """Every rotation before the node: side, way and turn."""
        for side, way in (("query", self.query_way), ("key", self.key_way)):
            if way is not None:
                yield from ((side, way, turn) for turn in way.turns)

    @property
    def query(self) -> tuple[Node, ...]:
        """The contrib RotaryEmbedding nodes on the way of the query."""
        return _nodes(self.query_way)

    @property
    def key(self) -> tuple[Node, ...]:
        """The contrib RotaryEmbedding nodes on the way of the key; with packed q, k and v the
        same as of the query.
        """
        return _nodes(self.key_way)


def _nodes(way: Way | None) -> tuple[Node, ...]:
    turns = way.turns if way is not None else ()
    return tuple(t.node for t in turns if (t.node.domain, t.node.op) == ROTARY_EMBEDDING)


# The layers of one way through the graph: those of an `If`'s branches are each other's
# alternatives, those of functions follow each other.
Track = tuple[Attention, ...]


def attentions(file: OnnxFile, hints: Hints) -> Track:
    """Every attention layer of the main graph, in the order of its nodes."""
    constants = Constants(file, Spans(file))
    found: list[tuple[Frame, Node]] = []
    main = Frame(file.main, {})
    _collect(main, constants, found, [])
    return _track(main, found, constants, hints, apart=False)


def tracks(main: Frame, constants: Constants, hints: Hints) -> tuple[Track, ...]:
    """Every attention layer of a file, by the ways that a call may take through it."""
    found = list(_tracks(main, constants))
    mixed = len(found) > 1 and bool(found[0][1])
    return tuple(
        _track(frame, nodes, constants, hints, apart=mixed and at > 0)
        for at, (frame, nodes) in enumerate(found)
        if nodes
    )


def _tracks(start: Frame, constants: Constants) -> Iterator[tuple[Frame, list[tuple[Frame, Node]]]]:
    """The attention nodes of a frame and of the functions it calls; then of nested graphs."""
    waiting = [start]
    while waiting:
        frame = waiting.pop(0)
        found: list[tuple[Frame, Node]] = []
        _collect(frame, constants, found, waiting)
        yield frame, found


def _collect(
    frame: Frame, constants: Constants, found: list[tuple[Frame, Node]], nested: list[Frame]
) -> None:
    body = frame.body
    indexes = [i for kind, at in body.ops.items() if is_attention(kind) for i in at]
    here: dict[int, Node] = {i: body.node(i) for i in indexes}
    here |= {node.index: node for node in plain_attention(body)}
    calls = {
        i: called
        for kind, at in body.ops.items()
        if frame.is_function(kind)
        for i in at
        if (called := frame.called(body.node(i))) is not None
    }
    for index in sorted({*here, *calls}):
        if index in here and index not in calls:
            found.append((frame, here[index]))
        elif index in calls:
            _collect(calls[index], constants, found, nested)
    for bodies in frame.nested.values():
        nested += bodies.values()


def _track(
    start: Frame,
    nodes: list[tuple[Frame, Node]],
    constants: Constants,
    hints: Hints,
    *,
    apart: bool,
) -> Track:
    """The numbered layers of one way. apart: others run before or behind them."""
    made = [_followed(frame, node, constants, hints) for frame, node in nodes]
    named = [named_layer(attention.cache, hints) for attention in made]
    layers, why = _numbers(start.body, named, apart, hints)
    return tuple(
        replace(
            attention,
            layer=layer,
            unfollowed=attention.unfollowed or (why if layer is None else None),
        )
        for attention, layer in zip(made, layers, strict=True)
    )


def _followed(frame: Frame, node: Node, constants: Constants, hints: Hints) -> Attention:
    bare = Attention(frame=frame, node=node, layer=None, cache="")
    if (node.domain, node.op) in OWN_TABLE:
        return replace(bare, do_rotary=node.integer("do_rotary", 0))
    inputs = bare.inputs
    if bare.is_plain:
        scores = scores_of(frame, node)
        if scores is None:
            return replace(bare, unfollowed="is an attention whose scores no MatMul makes")
        query, key, turned_keys = scores
        query_way = way_of(query, constants)
        key_way = way_of(key, constants, turned_keys=turned_keys)
        lost = _lost(query_way, key_way)
        cache = next(iter(key_way.caches), "")
        if len(set(key_way.caches)) > 1:
            lost = lost or f"its key is joined to {len(set(key_way.caches))} caches"
        return replace(bare, cache=cache, query_way=query_way, key_way=key_way, unfollowed=lost)
    if inputs is None:
        return replace(bare, cache=_any_cache(frame, node, hints))
    do_rotary = node.integer("do_rotary", 0) if inputs.cos is not None else 0
    is_rotated = do_rotary == 0
    query_way = way_of(resolve(frame, node.input(inputs.query)), constants, is_rotated=is_rotated)
    key_name = "" if inputs.key is None else node.input(inputs.key)
    key_way = query_way
    if key_name:
        key_way = way_of(resolve(frame, key_name), constants, is_rotated=is_rotated)
    lost = _lost(query_way, key_way)
    cache = next(iter(key_way.caches), "")
    if node.input(inputs.past_key):
        past = resolve(frame, node.input(inputs.past_key))
        cache = past.name if past.is_graph_input else ""
        if not cache:
            lost = lost or f"its key cache {past.name} is no input of the graph"
    return replace(
        bare,
        cache=cache,
        do_rotary=do_rotary,
        query_way=query_way,
        key_way=key_way,
        unfollowed=lost,
    )


def _lost(query: Way, key: Way) -> str | None:
    for what, way in (("query", query), ("key", key)):
        if way.unfollowed:
            return f"its {what} {way.unfollowed}"
    if query.trailing != key.trailing:
        return "its query and its key are rotated at different ends of a head"
    if query.sorted != key.sorted:
        return "of its query and its key one has its neighbours sorted apart"
    return None


def scores_of(frame: Frame, softmax: Node) -> tuple[Value, Value, int] | None:
    """q and k of the MatMul that leads to a Softmax; None where there are none, or several.

    And how often k's last two dims change places before it: not in ops that do so themselves.
    """
    waiting = [resolve(frame, softmax.input(0))]
    seen: set[Value] = set()
    found: list[tuple[Value, Value, int]] = []
    while waiting and len(seen) < _LONGEST:
        value = waiting.pop()
        node = value.node
        if node is None or value in seen:
            continue
        seen.add(value)
        inputs = [resolve(value.frame, name) for name in node.inputs if name]
        if node.op in _MATMULS and len(inputs) == 2:
            is_plain = node.op == "MatMul" or (
                node.op == "FusedMatMul" and not node.integer("transB", 0)
            )
            found.append((inputs[0], inputs[1], int(is_plain)))
        elif node.domain == STANDARD and node.op in _BEFORE_SOFTMAX:
            waiting += inputs
    return found[0] if len(found) == 1 else None


def unserved(main: Body, found: tuple[Track, ...], hints: Hints) -> Iterator[tuple[int, str]]:
    """(layer, name) of each key cache among the inputs that no attention layer takes."""
    served = {attention.cache for track in found for attention in track}
    layers = {attention.layer for track in found for attention in track}
    for name in main.inputs:
        layer = named_layer(name, hints)
        if layer is not None and name not in served and layer not in layers:
            yield layer, name


def _numbers(
    body: Body, named: list[int | None], apart: bool, hints: Hints
) -> tuple[list[int | None], str]:
    """The layer of each attention, and why those without one have none.

    named: the layers that the key caches name.
    """
    known = [layer for layer in named if layer is not None]
    if any(b <= a for a, b in pairwise(known)):
        why = "the key caches number the layers otherwise than the graph runs them"
        return [None] * len(named), why
    if known:
        return named, "no key cache among the inputs tells its layer"
    if apart:
        why = "no key cache among the inputs tells its layer, and others are outside of its graph"
        return [None] * len(named), why
    if body.is_sorted:
        is_hybrid = bool(hints.without) and len(hints.attending) == len(named)
        return list(hints.attending if is_hybrid else range(len(named))), ""
    return [None] * len(named), "the nodes are not in the order they run in, which tells the layer"


def _any_cache(frame: Frame, node: Node, hints: Hints) -> str:
    for name in node.inputs:
        origin = resolve(frame, name)
        if origin.is_graph_input and named_layer(origin.name, hints) is not None:
            return origin.name
    return ""


def named_layer(name: str, hints: Hints) -> int | None:
    """The layer whose key cache a graph input of that name is; None for another input."""
    if hints.past_key_names is None or not name:
        return None
    pattern = re.escape(hints.past_key_names).replace("%d", "([0-9]{1,6})")
    match = re.fullmatch(pattern, name)
    return int(match[1]) if match and match.groups() else None


def plain_attention(body: Body) -> Iterator[Node]:
    """The Softmax of each attention that is written in plain ops: it leads to a MatMul."""
    for node in body.nodes(*SOFTMAX):
        waiting, seen = [node], {node.index}
        while waiting and len(seen) < _LONGEST:
            takers = [i for name in waiting.pop().outputs for i in body.consumers.get(name, ())]
            after = [body.node(i) for i in takers if i not in seen]
            seen.update(takers)
            if any(taker.op in _MATMULS for taker in after):
                yield node
                break
            waiting += [taker for taker in after if taker.op in _AFTER_SOFTMAX]
