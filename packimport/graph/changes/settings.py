"""Settings: how a node pairs the entries of a head, and how many of them it rotates."""

from __future__ import annotations

from packimport.graph.changes.draft import Draft, Unchangeable
from packimport.graph.changes.uses import Use
from packimport.graph.forms import group_query_attention

_INTERLEAVED = {True: "interleaved", False: "half-split"}


def pair(draft: Draft, use: Use, interleaved: bool, reason: str) -> None:
    """Let a node pair neighbours (interleaved), or halves."""
    is_fused = use.form == group_query_attention.FORM
    name = "rotary_interleaved" if is_fused else "interleaved"
    if use.node.integer(name, 0) != interleaved:
        draft.set_integer(use.node, name, int(interleaved))
        change = f"{name} becomes {int(interleaved)} ({_INTERLEAVED[interleaved]})"
        draft.note(use.node.label, change, reason)


def rotate_entries(draft: Draft, use: Use, rotary_dim: int, head_dim: int, reason: str) -> None:
    """Let a node rotate `rotary_dim` entries of a head, by a table of half as many pairs.

    GroupQueryAttention takes the number from its table alone, whose width must be a
    multiple of 8. Raises Unchangeable where the node can't do it.
    """
    if use.form == group_query_attention.FORM:
        if rotary_dim % 16:
            raise Unchangeable(
                f"GroupQueryAttention rotates a multiple of 16 entries, not {rotary_dim}"
            )
        return
    if rotary_dim == head_dim:
        wanted = {"rotary_embedding_dim": 0}
    elif use.heads:
        wanted = {"rotary_embedding_dim": rotary_dim, "num_heads": use.heads}
    else:
        raise Unchangeable(f"nothing tells the number of heads that {use.node.label} rotates")
    for name, value in wanted.items():
        if use.node.integer(name, 0) != value:
            draft.set_integer(use.node, name, value)
            draft.note(use.node.label, f"{name} becomes {value}", reason)
