"""Dangling: rotations by positions that nothing in the graph makes. No runtime loads such a graph.

onnxruntime-genai's builder leaves them behind in layers without RoPE, where the attention
of the other layers rotates by itself and the graph has no position ids.
"""

from __future__ import annotations

from collections.abc import Iterator

from packimport.graph.attention import Attention
from packimport.graph.body import Body
from packimport.graph.node import Node
from packimport.graph.ops import ROTARY_EMBEDDING
from packimport.graph.rotation import Scene
from packimport.graph.site import Unread

_POSITIONS = 1


def is_dangling(body: Body, node: Node) -> bool:
    """Whether a node of the main graph is a RotaryEmbedding whose positions nothing makes."""
    name = node.input(_POSITIONS)
    return (
        (node.domain, node.op) == ROTARY_EMBEDDING
        and bool(name)
        and not body.is_fed(name)
        and name not in body.producers
        and name not in body.tensor_names
        and name not in body.sparse
    )


def rotates_by_nothing(body: Body, attention: Attention) -> bool:
    """Whether dangling nodes, and no others, rotate the q and k of a layer."""
    nodes = (*attention.query, *attention.key)
    return bool(nodes) and not attention.do_rotary and all(is_dangling(body, n) for n in nodes)


def dangling(scene: Scene) -> Iterator[Unread]:
    """Every node of the layers that are rotated so."""
    main = scene.file.main
    for attention in scene.attentions:
        if attention.layer is not None and rotates_by_nothing(main, attention):
            for node in dict.fromkeys((*attention.query, *attention.key)):
                name = node.input(_POSITIONS)
                reason = f"rotates by the positions {name}, which nothing in the graph makes"
                yield scene.unread(node, reason, attention.layer)
