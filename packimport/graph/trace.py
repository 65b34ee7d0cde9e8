"""Trace: from a value of a graph back to where it comes from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from packimport.errors import GraphError
from packimport.graph.body import Body
from packimport.graph.node import STANDARD, Node, Tensor
from packimport.graph.protos import DTYPES

# What a Cast may turn positions into: smaller integers and floats can't hold them.
_WHOLE = frozenset({"int32", "int64", "uint32", "uint64"})
_LONGEST = 100
_RESHAPING = frozenset({"Reshape", "Unsqueeze", "Squeeze", "Identity", "Flatten", "Expand"})


class Unfollowed(Exception):
    """A value whose source is not understood: why, in one clause."""


@dataclass(frozen=True, slots=True)
class Constant:
    """A constant that a node takes: the tensor, and the names its value has on the way."""

    tensor: Tensor
    names: frozenset[str]


def constant(body: Body, name: str) -> Constant:
    """The constant behind a value, through Identity and Casts that change nothing.

    An initializer, or the tensor of a Constant node. Raises Unfollowed for
    anything else, saying which node makes the value.
    """
    names, casts = _back(body, name, _passes_table)
    end = names[-1]
    node = body.producer(end)
    tensor = body.tensor(end)
    if node is not None and (node.domain, node.op) == (STANDARD, "Constant"):
        tensor = node.tensor("value")
    if tensor is None:
        raise Unfollowed(_origin(body, end, node))
    for cast in casts:
        if _target(cast) != tensor.dtype:
            raise Unfollowed(
                f"comes through {cast.label}, a Cast from {tensor.dtype} to {_target(cast)}"
            )
    return Constant(tensor, frozenset(names))


def check_positions(body: Body, name: str, positions: str) -> None:
    """Raises Unfollowed unless a value is the graph input `positions`, reshaped at most."""
    names, _ = _back(body, name, _passes_positions)
    end = names[-1]
    if end == positions and body.is_fed(end):
        return
    node = body.producer(end)
    if node is not None and (node.domain, node.op) == (STANDARD, "Cast"):
        raise Unfollowed(f"come through {node.label}, a Cast to {_target(node)}")
    if body.tensor(end) is not None:
        raise Unfollowed(f"are the constant {end}, not the input {positions}")
    if body.is_fed(end):
        raise Unfollowed(f"are the graph input {end}, not {positions}")
    raise Unfollowed(_origin(body, end, node).replace("comes", "come", 1))


def source(body: Body, name: str) -> str:
    """The name of the value behind a value, through Identity."""
    return _back(body, name, lambda node: node.op == "Identity")[0][-1]


def _back(body: Body, name: str, passes: Callable[[Node], bool]) -> tuple[list[str], list[Node]]:
    """The names from `name` back to the first value made by a node that does not pass, and
    the Casts on the way."""
    names, casts = {name: None}, []
    while (node := body.producer(name)) is not None:
        if node.domain != STANDARD or not passes(node) or not node.input(0):
            break
        name = node.input(0)
        if name in names or len(names) > _LONGEST:
            raise GraphError("a value that goes round in circles, or too far", place=node.place)
        if node.op == "Cast":
            casts.append(node)
        names[name] = None
    return list(names), casts


def _passes_table(node: Node) -> bool:
    return node.op in {"Identity", "Cast"}


def _passes_positions(node: Node) -> bool:
    return node.op in _RESHAPING or (node.op == "Cast" and _target(node) in _WHOLE)


def _target(cast: Node) -> str:
    number = cast.integer("to", 0)
    return DTYPES.get(number, f"data type {number}")


def _origin(body: Body, name: str, node: Node | None) -> str:
    if node is not None:
        return f"comes from the {node.op} node {node.label}"
    if not name:
        return "is left out"
    if name in body.sparse:
        return f"comes from the sparse initializer {name}"
    if body.is_fed(name):
        return f"comes from outside, as the graph input {name}"
    return f"comes from {name}, which nothing in the graph makes"
