"""Take out: a rotation that must not be there."""

from __future__ import annotations

from packimport.graph.changes.draft import Draft, Unchangeable
from packimport.graph.forms import group_query_attention
from packimport.graph.node import Node

_TABLES_AND_POSITIONS = (7, 8, 9)


def stop_rotating(draft: Draft, node: Node, reason: str) -> None:
    """Let a GroupQueryAttention rotate nothing; it then takes neither tables nor positions."""
    draft.set_integer(node, "do_rotary", 0)
    for index in _TABLES_AND_POSITIONS:
        if draft.input(node, index):
            draft.set_input(node, index, "")
    draft.note(node.label, f"do_rotary of {group_query_attention.FORM} becomes 0", reason)


def bypass(draft: Draft, node: Node, reason: str) -> None:
    """Cut out a RotaryEmbedding: whoever took its output takes its input.

    Raises Unchangeable where the output leaves the main graph.
    """
    main = draft.file.main
    (output,) = node.outputs
    nested = [body for body in draft.file.bodies() if body is not main]
    if output in main.outputs or any(output in body.consumers for body in nested):
        raise Unchangeable(f"the value that {node.label} makes is taken outside the main graph")
    for index in dict.fromkeys(main.consumers.get(output, ())):
        taker = main.node(index)
        for at in range(len(taker.inputs)):
            if draft.input(taker, at) == output:
                draft.set_input(taker, at, draft.input(node, 0))
    draft.remove(node)
    draft.forget_value(output)
    draft.note(node.label, f"the {node.op} node is cut out", reason)
