"""Heads: into how many heads the attention layers cut q and k, and how long a graph says they are.

Attributes of the attention op, the shape of its key cache, and of the query of one in plain
ops. What the graph does not state is not guessed.
"""

from __future__ import annotations

from collections.abc import Iterator

from packimport.errors import shorten
from packimport.graph import ryzen_ai
from packimport.graph.attention import Attention, scores_of
from packimport.graph.onnx_file import OnnxFile
from packimport.graph.ops import OWN_TABLE
from packimport.graph.rotation import Scene
from packimport.graph.site import Heads

# A cache, or a query: [batch, heads, tokens, entries].
_RANK = 4


def heads(scene: Scene) -> Iterator[Heads]:
    """What the graph states of the heads of each way of cutting, with the layers that have it."""
    groups: dict[object, list[Attention]] = {}
    for attention in scene.attentions:
        if attention.layer is not None and attention.is_read:
            groups.setdefault(_stated(scene.file, attention), []).append(attention)
    for stated, group in groups.items():
        assert isinstance(stated, tuple)
        query, keys, sizes = stated
        if query or keys or sizes:
            yield Heads(
                node=shorten(group[0].node.label, 400),
                layers=tuple(sorted({a.layer for a in group if a.layer is not None})),
                query=query,
                keys=keys,
                sizes=sizes,
            )


def _stated(
    file: OnnxFile, attention: Attention
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    node = attention.node
    query = [node.integer(name, 0) for name in ("num_heads", "q_num_heads")]
    keys = [node.integer("kv_num_heads", 0)]
    sizes = []
    kind = (node.domain, node.op)
    if kind in ryzen_ai.GROUP_QUERY:
        sizes.append(node.integer("head_size", 0))
    if kind not in OWN_TABLE:
        count, size = _of_cache(file, attention)
        keys.append(count)
        sizes.append(size)
    if attention.is_plain:
        scores = scores_of(attention.frame, node)
        is_main = scores is not None and scores[0].frame.is_main
        shape = file.stated_shape(scores[0].name) if scores is not None and is_main else None
        if shape is not None and len(shape) == _RANK:
            query.append(shape[1] or 0)
            sizes.append(shape[3] or 0)
    return _known(query), _known(keys), _known(sizes)


def _of_cache(file: OnnxFile, attention: Attention) -> tuple[int, int]:
    """Heads and entries of the key cache; 0 where the graph does not state them.

    The entries are the one dim of the last two that is stated: tokens are counted at each call.
    """
    shape = file.stated_shape(attention.cache) if attention.cache else None
    if shape is None or len(shape) != _RANK or (shape[2] is None) == (shape[3] is None):
        return 0, 0
    return shape[1] or 0, shape[2] or shape[3] or 0


def _known(numbers: list[int]) -> tuple[int, ...]:
    return tuple(sorted({number for number in numbers if number > 0}))
