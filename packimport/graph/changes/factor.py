"""Factor: what multiplies cos and sin where a graph computes them: the attention factor."""

from __future__ import annotations

import numpy as np

from packimport.graph.changes.draft import Draft, Unchangeable
from packimport.graph.node import STANDARD, Node


def multiply(draft: Draft, op: str, label: str, factor: float, reason: str) -> None:
    """Multiply what a Cos or Sin node of the main graph makes, for all who take it.

    op: "Cos" or "Sin". label: of the node. The values are float32. Raises Unchangeable
    where the node is not one of the main graph, or its output is taken outside of that.
    """
    main = draft.file.main
    found = [node for node in main.nodes(STANDARD, op) if node.label == label]
    if len(found) != 1:
        raise Unchangeable(f"the {op} node {label} is not in the main graph")
    (node,) = found
    (output,) = node.outputs
    nested = [body for body in draft.file.bodies() if body is not main]
    if output in main.outputs or any(output in body.consumers for body in nested):
        raise Unchangeable(f"the value that {label} makes is taken outside the main graph")
    takers = [main.node(index) for index in dict.fromkeys(main.consumers.get(output, ()))]
    if not takers:
        raise Unchangeable(f"nothing takes the value that {label} makes")
    values = np.array([factor], "<f4")
    name = f"attention_factor/{op.lower()}"
    constant = draft.add_constant(f"{name}/factor", "float32", (1,), values.tobytes())
    scaled = draft.insert_node(_first(takers), "Mul", [output, constant], name)
    for taker in takers:
        for at in range(len(taker.inputs)):
            if draft.input(taker, at) == output:
                draft.set_input(taker, at, scaled)
    draft.note(label, f"what it makes is multiplied by {values[0]:.9g}", reason)


def _first(nodes: list[Node]) -> Node:
    return min(nodes, key=lambda node: node.index)
