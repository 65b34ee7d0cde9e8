"""Frame: one body as it runs, and the values that it sees.

A nested graph sees the names of the graphs around it; a local function sees its
inputs alone, which are values of the graph that calls it. A Value is a name in a
frame; `resolve` follows it to the frame and node that make it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from packimport.errors import GraphError
from packimport.graph.body import Body
from packimport.graph.node import STANDARD, Node, Tensor

# Calls and nested graphs inside each other; onnx forbids recursion.
_DEEPEST = 50
# Names of one value on its way through functions, graphs and Identity nodes.
_LONGEST = 200
# Frames of one file: a function is one frame per call.
_MOST = 20_000

Functions = Mapping[tuple[str, str], Body]


@dataclass(frozen=True, slots=True)
class Value:
    """A name in a frame."""

    frame: Frame
    name: str

    @property
    def node(self) -> Node | None:
        """The node that makes it, in its own frame; None for inputs and initializers."""
        return self.frame.body.producer(self.name)

    @property
    def output(self) -> int:
        """Which output of its node it is."""
        node = self.node
        return node.outputs.index(self.name) if node is not None else 0

    @property
    def tensor(self) -> Tensor | None:
        """The constant behind it: an initializer, or the tensor of a Constant node."""
        node = self.node
        if node is not None and (node.domain, node.op) == (STANDARD, "Constant"):
            return node.tensor("value")
        return None if node is not None else self.frame.body.tensor(self.name)

    @property
    def is_graph_input(self) -> bool:
        """Whether it is fed to the main graph."""
        return self.frame.is_main and self.frame.body.is_fed(self.name)


@dataclass(frozen=True, slots=True)
class Trail:
    """What a trace passed: nodes by body and index, and values by body and name."""

    nodes: set[tuple[Body, int]] = field(default_factory=set)
    values: set[tuple[Body, str]] = field(default_factory=set)


class Frame:
    """One body as it runs.

    parent: the frame whose names it sees; None for the main graph and functions.
    bound:  the inputs of a function ─▶ the values of its call.
    call:   body and index of the node that calls a function.
    """

    def __init__(
        self,
        body: Body,
        functions: Functions,
        *,
        parent: Frame | None = None,
        bound: Mapping[str, Value] | None = None,
        call: tuple[Body, int] | None = None,
        depth: int = 0,
    ) -> None:
        if depth > _DEEPEST:
            raise GraphError("functions or graphs nested too deep", place=body.scope.place)
        self.body = body
        self.parent = parent
        self.bound = bound or {}
        self.call = call
        self.is_main = depth == 0
        self._functions = functions
        self._depth = depth
        self._called: dict[int, Frame] = {}

    @property
    def branch(self) -> str:
        """Its body as text: "" for the main graph, else e.g. "then_branch of /If"."""
        return self.body.scope.where

    def is_function(self, kind: tuple[str, str]) -> bool:
        """Whether an op type is a local function that is followed."""
        return kind in self._functions

    def called(self, node: Node) -> Frame | None:
        """The frame of a call of a local function; None for any other node."""
        body = self._functions.get((node.domain, node.op))
        if body is None:
            return None
        if node.index not in self._called:
            inputs = zip(body.inputs, node.inputs, strict=False)
            bound = {formal: Value(self, actual) for formal, actual in inputs if actual}
            self._called[node.index] = Frame(
                body,
                self._functions,
                bound=bound,
                call=(self.body, node.index),
                depth=self._depth + 1,
            )
        return self._called[node.index]

    @cached_property
    def nested(self) -> Mapping[int, Mapping[str, Frame]]:
        """Index of a node ─▶ name of its attribute ─▶ the frame of the graph in it."""
        return {
            index: {
                name: Frame(body, self._functions, parent=self, depth=self._depth + 1)
                for name, body in held.items()
            }
            for index, held in self.body.held.items()
        }

    def inside(self) -> Iterator[Frame]:
        """The frames right inside: nested graphs and calls, in the order of the nodes."""
        calls = [
            i for kind, found in self.body.ops.items() if kind in self._functions for i in found
        ]
        for index in sorted({*self.nested, *calls}):
            yield from self.nested.get(index, {}).values()
            called = self.called(self.body.node(index))
            if called is not None:
                yield called

    def everything(self) -> Iterator[Frame]:
        """This frame and all inside it. Raises GraphError beyond a sane number."""
        waiting, count = [self], 0
        while waiting:
            frame = waiting.pop()
            count += 1
            if count > _MOST:
                raise GraphError("too many calls of functions", place=self.body.scope.place)
            yield frame
            waiting.extend(reversed(list(frame.inside())))

    def home(self, name: str) -> Frame | None:
        """The frame that a name belongs to: this one, or one around it; None for no name."""
        frame: Frame | None = self
        while frame is not None:
            body = frame.body
            if name in body.producers or body.has_tensor(name) or body.is_fed(name):
                return frame
            frame = frame.parent
        return None


def resolve(frame: Frame, name: str, trail: Trail | None = None) -> Value:
    """The value behind a name, through scopes, calls and Identity nodes.

    What it passes is added to `trail`. A name that nothing makes comes back as it is.
    """
    value = Value(frame, name)
    for _ in range(_LONGEST):
        home = value.frame.home(value.name) if value.name else None
        if home is None:
            return value
        value = Value(home, value.name)
        if trail is not None:
            trail.values.add((home.body, value.name))
        if value.name in home.bound:
            if trail is not None and home.call is not None:
                trail.nodes.add(home.call)
            value = home.bound[value.name]
            continue
        node = value.node
        if node is None:
            return value
        if (called := home.called(node)) is not None and value.output < len(called.body.outputs):
            after = Value(called, called.body.outputs[value.output])
        elif (node.domain, node.op) == (STANDARD, "Identity"):
            after = Value(home, node.input(0))
        else:
            return value
        if trail is not None:
            trail.nodes.add((home.body, node.index))
        value = after
    raise GraphError("a value that goes round in circles, or too far", place=frame.body.scope.place)
