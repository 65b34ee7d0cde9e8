"""Attention: the attention layers of a graph, numbered, and what rotates their q and k."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from packimport.graph.body import Body
from packimport.graph.node import STANDARD, Node
from packimport.graph.ops import GROUP_QUERY_ATTENTION, is_attention
from packimport.graph.projections import way_of
from packimport.graph.site import Hints
from packimport.graph.trace import source

_QUERY, _KEY, _PAST_KEY = 0, 1, 3
_LONGEST = 100
# What stands between the scores of an attention in plain ops and its second MatMul.
_AFTER_SOFTMAX = frozenset({"Cast", "Dropout", "Identity", "Where", "Slice", "Reshape"})


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Attention:
    """One attention layer.

    do_rotary:  the attribute: 1 where the node rotates by itself, 0 where not.
    layer:      its number; None where nothing tells it.
    cache:      the graph input that holds its keys; "" where it has none that is known.
    query, key: the contrib RotaryEmbedding nodes on the way to each; with packed
                q, k and v those of the packed value, in both.
    unfollowed: why the layer is not understood; None where it is.
    """

    node: Node
    layer: int | None
    cache: str
    do_rotary: int = 0
    query: tuple[Node, ...] = ()
    key: tuple[Node, ...] = ()
    unfollowed: str | None = None

    @property
    def is_read(self) -> bool:
        """Whether the node is of an op type that is read."""
        return (self.node.domain, self.node.op) == GROUP_QUERY_ATTENTION


def attentions(body: Body, hints: Hints) -> tuple[Attention, ...]:
    """Every attention layer of a body, in the order of its nodes."""
    indexes = [i for kind, found in body.ops.items() if is_attention(kind) for i in found]
    nodes = sorted([*map(body.node, indexes), *plain_attention(body)], key=lambda node: node.index)
    caches = [_key_cache(body, node, hints) for node in nodes]
    layers, unnumbered = _numbers(body, [_named(cache, hints) for cache in caches])
    return tuple(
        _followed(body, Attention(node=node, layer=layer, cache=cache), unnumbered)
        for node, layer, cache in zip(nodes, layers, caches, strict=True)
    )


def unserved(body: Body, found: tuple[Attention, ...], hints: Hints) -> Iterator[tuple[int, str]]:
    """(layer, name) of each key cache among the inputs that no attention layer takes."""
    served = {attention.cache for attention in found}
    layers = {attention.layer for attention in found}
    for name in body.inputs:
        layer = _named(name, hints)
        if layer is not None and name not in served and layer not in layers:
            yield layer, name


def _followed(body: Body, found: Attention, unnumbered: str) -> Attention:
    node = found.node
    if not found.is_read:
        return found
    query = way_of(body, node.input(_QUERY))
    key = way_of(body, node.input(_KEY)) if node.input(_KEY) else query
    ways = {"query": query, "key": key}
    lost = [f"its {what} {way.unfollowed}" for what, way in ways.items() if way.unfollowed]
    if node.input(_PAST_KEY) and not found.cache:
        lost.append(f"its key cache {node.input(_PAST_KEY)} is no input of the graph")
    if found.layer is None:
        lost.append(unnumbered)
    return replace(
        found,
        do_rotary=node.integer("do_rotary", 0),
        query=query.rotations,
        key=key.rotations,
        unfollowed=lost[0] if lost else None,
    )


def _numbers(body: Body, named: list[int | None]) -> tuple[list[int | None], str]:
    """The layer of each attention, and why those without one have none.

    named: the layers that the key caches name.
    """
    known = [layer for layer in named if layer is not None]
    if any(b <= a for a, b in pairwise(known)):
        why = "the key caches number the layers otherwise than the graph runs them"
        return [None] * len(named), why
    if known:
        return named, "no key cache among the inputs tells its layer"
    if body.is_sorted:
        return list(range(len(named))), ""
    return [None] * len(named), "the nodes are not in the order they run in, which tells the layer"


def _key_cache(body: Body, node: Node, hints: Hints) -> str:
    is_read = (node.domain, node.op) == GROUP_QUERY_ATTENTION
    for name in (node.input(_PAST_KEY),) if is_read else node.inputs:
        origin = source(body, name)
        if body.is_fed(origin) and (is_read or _named(origin, hints) is not None):
            return origin
    return ""


def _named(name: str, hints: Hints) -> int | None:
    if hints.past_key_names is None:
        return None
    pattern = re.escape(hints.past_key_names).replace("%d", "([0-9]{1,6})")
    match = re.fullmatch(pattern, name)
    return int(match[1]) if match and match.groups() else None


def plain_attention(body: Body) -> Iterator[Node]:
    """The Softmax of each attention that is written in plain ops: it leads to a MatMul."""
    for node in body.nodes(STANDARD, "Softmax"):
        waiting, seen = [node], {node.index}
        while waiting and len(seen) < _LONGEST:
            takers = [i for name in waiting.pop().outputs for i in body.consumers.get(name, ())]
            after = [body.node(i) for i in takers if i not in seen]
            seen.update(takers)
            if any(taker.op in {"MatMul", "Einsum", "FusedMatMul"} for taker in after):
                yield node
                break
            waiting += [taker for taker in after if taker.op in _AFTER_SOFTMAX]
