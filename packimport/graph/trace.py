"""Trace: from a value of a graph back to the constant or the node that it comes from."""

from __future__ import annotations

from dataclasses import dataclass

from packimport.graph.body import Body
from packimport.graph.frame import Frame, Trail, Value, resolve
from packimport.graph.node import STANDARD, Node, Tensor
from packimport.graph.protos import DTYPES


class Unfollowed(Exception):
    """A value whose source is not understood: why, in one clause."""


class Offloaded(Unfollowed):
    """A constant whose values were moved out of the graph's files: it has the shape [0]."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant that a node takes: the tensor, and the names its value has on the way."""

    tensor: Tensor
    names: frozenset[str]


def constant(body: Body, name: str) -> Constant:
    """The constant behind a value of one body, through Identity and Casts that change nothing.

    An initializer, or the tensor of a Constant node. Raises Unfollowed for
    anything else, saying which node makes the value.
    """
    trail = Trail()
    value = resolve(Frame(body, {}), name, trail)
    casts = []
    while (node := value.node) is not None and (node.domain, node.op) == (STANDARD, "Cast"):
        casts.append(node)
        value = resolve(value.frame, node.input(0), trail)
    tensor = value.tensor
    if tensor is None:
        raise Unfollowed(origin(value))
    for cast in casts:
        check_cast(cast, tensor.dtype)
    return Constant(tensor, frozenset(name for _, name in trail.values))


def check_cast(cast: Node, dtype: str) -> None:
    """Raises Unfollowed where a Cast makes another dtype of a constant."""
    if target(cast) != dtype:
        raise Unfollowed(f"comes through {cast.label}, a Cast from {dtype} to {target(cast)}")


def target(cast: Node) -> str:
    """The dtype that a Cast makes."""
    number = cast.integer("to", 0)
    return DTYPES.get(number, f"data type {number}")


def origin(value: Value) -> str:
    """Where a value comes from, as a clause."""
    node = value.node
    if node is not None:
        return f"comes from the {node.op} node {node.label}"
    if not value.name:
        return "is left out"
    if value.name in value.frame.body.sparse:
        return f"comes from the sparse initializer {value.name}"
    if value.frame.body.is_fed(value.name):
        return f"comes from outside, as the graph input {value.name}"
    return f"comes from {value.name}, which nothing in the graph makes"
