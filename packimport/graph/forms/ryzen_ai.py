"""Attention nodes of AMD's domains that rotate q and k by themselves: GQO, and GQA.

They rotate as GroupQueryAttention of com.microsoft does, from tables [rows, pairs].
Which inputs are the tables depends on the number of inputs: see `ops`. The attribute
rotary_embedding_dim says how many entries of a head rotate, 0 for all that the table has.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from packimport.graph import ryzen_ai
from packimport.graph.attention import Attention
from packimport.graph.forms import group_query_attention
from packimport.graph.ops import GROUP_QUERY_ATTENTION, gqo_counts
from packimport.graph.rotation import Rotation, Scene, is_set
from packimport.graph.site import Unread
from packimport.graph.trace import Unfollowed

FORM = "GQO"


def _form(kind: tuple[str, str]) -> str:
    domain, op = kind
    # Only the op of com.microsoft is called by its bare name.
    return f"{op} of {domain}" if op == GROUP_QUERY_ATTENTION[1] else op


# What the sites of these nodes are called.
FORMS = frozenset(map(_form, ryzen_ai.GROUP_QUERY))


def find(scene: Scene) -> Iterator[Rotation | Unread]:
    """A Rotation or an Unread for each node that rotates; nothing for those that don't."""
    for attention in scene.attentions:
        node = attention.node
        if (node.domain, node.op) not in ryzen_ai.GROUP_QUERY:
            continue
        try:
            if attention.inputs is None:
                count = len(node.inputs)
                raise Unfollowed(f"has {count} inputs; a form with {gqo_counts()} is read")
            if is_set("do_rotary", attention.do_rotary):
                yield _read(scene, attention)
        except Unfollowed as error:
            yield scene.unread(node, error, attention.layer)


def _read(scene: Scene, attention: Attention) -> Rotation:
    rotation = group_query_attention.read(scene, attention)
    stated = attention.node.integer("rotary_embedding_dim", 0)
    if stated < 0 or stated % 2:
        raise Unfollowed(f"has rotary_embedding_dim = {stated}; an even number is allowed")
    return replace(
        rotation,
        form=_form((attention.node.domain, attention.node.op)),
        rotary_dim=stated or rotation.rotary_dim,
    )
