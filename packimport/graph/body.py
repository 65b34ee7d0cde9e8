"""Body: the nodes and constants of one scope, and who makes and takes each value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property

from packimport.errors import GraphError
from packimport.graph.node import MICROSOFT, STANDARD, Node, Scope, Tensor, check_text, make_tensor
from packimport.graph.protos import BodyProto, FunctionProto, NodeProto, TensorProto
from packimport.graph.wire import Path

# The ops whose attributes hold graphs, of onnx 1.23 and onnxruntime 1.32. Ops of other
# domains are all looked into.
_WITH_BODIES: Mapping[str, frozenset[str]] = {
    STANDARD: frozenset({"If", "Loop", "Scan", "SequenceMap"}),
    MICROSOFT: frozenset({"BeamSearch", "GreedySearch", "Sampling", "WhisperBeamSearch"}),
}
# How many inputs ops of ONNX have: those that are followed by place, and have no optional one.
_INPUTS: Mapping[str, int] = {
    **dict.fromkeys(("Add", "Sub", "Mul", "Div", "Pow", "MatMul", "Gather", "GatherND"), 2),
    **dict.fromkeys(("Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Equal"), 2),
    **dict.fromkeys(("Range", "Where"), 3),
}
_GRAPH_NODE, _FUNCTION_NODE, _INITIALIZER = 1, 7, 5
_ATTRIBUTE, _SUBGRAPH, _SUBGRAPHS = 5, 6, 11


class Body:
    """One scope: the main graph, a nested graph, or a function.

    scope:   where it is.
    inputs:  names of the values fed from outside, initializers left out.
    outputs: names of the values handed out.
    ops:     (domain, op type) ─▶ indexes of the nodes, ascending.
    sparse:  names of sparse initializers.

    Maps are made when first asked for. Raises GraphError where two nodes or
    initializers have one name, a name is not UTF-8, or a node that is asked for lacks inputs.
    """

    def __init__(
        self,
        scope: Scope,
        nodes: list[NodeProto],
        *,
        inputs: list[str],
        outputs: list[str],
        initializers: Sequence[TensorProto] = (),
        sparse: Iterable[str] = (),
    ) -> None:
        self.scope = scope
        self._protos = nodes
        self._made: dict[str, Tensor] = {}
        self._nodes: dict[int, Node] = {}
        self._tensors = {tensor.name: (i, tensor) for i, tensor in enumerate(initializers)}
        if len(self._tensors) < len(initializers):
            raise GraphError("two initializers have one name", place=scope.place)
        self.sparse = frozenset(sparse)
        check_text((*self._tensors, *inputs, *outputs, *self.sparse), scope.place)
        self.inputs = tuple(name for name in inputs if name not in self._tensors)
        self.outputs = tuple(outputs)
        self._fed = frozenset(self.inputs)
        self.ops = self._grouped()

    @classmethod
    def of_graph(cls, file: str, where: str, path: Path, proto: BodyProto) -> Body:
        """The body of a graph; where: "" or e.g. "then_branch of /model/If"."""
        return cls(
            Scope(file, where, path, _GRAPH_NODE),
            list(proto.node),
            inputs=[value.name for value in proto.input],
            outputs=[value.name for value in proto.output],
            initializers=proto.initializer,
            sparse=(tensor.values.name for tensor in proto.sparse_initializer),
        )

    @classmethod
    def of_function(cls, file: str, path: Path, proto: FunctionProto) -> Body:
        """The body of a local function."""
        return cls(
            Scope(file, f"function {proto.name}", path, _FUNCTION_NODE),
            list(proto.node),
            inputs=list(proto.input),
            outputs=list(proto.output),
        )

    def __len__(self) -> int:
        return len(self._protos)

    def is_fed(self, name: str) -> bool:
        """Whether a value is fed from outside."""
        return name in self._fed

    def has_tensor(self, name: str) -> bool:
        """Whether there is an initializer of this name."""
        return name in self._tensors

    def node(self, index: int) -> Node:
        """The node at `index`."""
        known = self._nodes.get(index)
        if known is not None:
            return known
        proto = self._protos[index]
        inputs = tuple(proto.input)
        check_text(inputs, self.scope.place)
        made = Node(self.scope, index, proto.op_type, _domain(proto.domain), inputs, proto)
        if made.domain == STANDARD and _INPUTS.get(made.op, len(inputs)) != len(inputs):
            raise GraphError(
                f"a node of {made.op} with another number of inputs",
                place=made.place,
                found=len(inputs),
                allowed=str(_INPUTS[made.op]),
            )
        return self._nodes.setdefault(index, made)

    def nodes(self, domain: str, op: str) -> Iterator[Node]:
        """The nodes of one op type, in the order of the graph."""
        return map(self.node, self.ops.get((domain, op), ()))

    def producer(self, name: str) -> Node | None:
        """The node of this body that makes a value; None for any other value."""
        index = self.producers.get(name)
        return None if index is None else self.node(index)

    def tensor(self, name: str) -> Tensor | None:
        """The initializer of this name, if there is one."""
        if name in self._made or name not in self._tensors:
            return self._made.get(name)
        index, proto = self._tensors[name]
        path = (*self.scope.path, (_INITIALIZER, index))
        return self._made.setdefault(
            name, make_tensor(proto, name=name, path=path, file=self.scope.file)
        )

    @property
    def tensor_names(self) -> tuple[str, ...]:
        """The names of the initializers, in the order of the graph."""
        return tuple(self._tensors)

    def tensors(self) -> Iterator[Tensor]:
        """Every initializer."""
        return (tensor for name in self._tensors if (tensor := self.tensor(name)) is not None)

    @cached_property
    def producers(self) -> Mapping[str, int]:
        """Each value that a node makes ─▶ the index of the node."""
        made: dict[str, int] = {}
        for index, proto in enumerate(self._protos):
            # A slice is a list, over which a loop takes half the time.
            for name in proto.output[:]:
                if name in made and name:
                    raise GraphError(
                        "two nodes make one value", place=f"{self.scope.place}: {name}"
                    )
                made[name] = index
        made.pop("", None)
        twice = made.keys() & (self._tensors.keys() | set(self.inputs))
        if twice:
            raise GraphError(
                "a node makes a value that is there", place=f"{self.scope.place}: {twice}"
            )
        return made

    @cached_property
    def consumers(self) -> Mapping[str, list[int]]:
        """Each value ─▶ indexes of the nodes that take it; nested bodies left out."""
        taken: dict[str, list[int]] = {}
        for index, proto in enumerate(self._protos):
            for name in proto.input[:]:
                if name in taken:
                    taken[name].append(index)
                else:
                    taken[name] = [index]
        return taken

    def takers(self, names: frozenset[str]) -> Mapping[str, list[int]]:
        """What `consumers` has for some values: to look for a few is faster than to map all."""
        if "consumers" in self.__dict__:  # made already
            return self.consumers
        taken: dict[str, list[int]] = {}
        for index, proto in enumerate(self._protos):
            inputs = proto.input[:]
            if not names.isdisjoint(inputs):
                for name in names.intersection(inputs):
                    taken.setdefault(name, []).append(index)
        return taken

    @cached_property
    def is_sorted(self) -> bool:
        """Whether every node stands after those whose values it takes, as ONNX asks for."""
        taken = self.consumers
        return all(taken[name][0] > at for name, at in self.producers.items() if name in taken)

    @cached_property
    def held(self) -> Mapping[int, Mapping[str, Body]]:
        """Index of a node ─▶ attribute ─▶ the body that it holds, one level down."""
        return {
            index: bodies
            for (domain, op), indexes in self.ops.items()
            if domain not in _WITH_BODIES or op in _WITH_BODIES[domain]
            for index in indexes
            if (bodies := dict(self._held_by(index)))
        }

    @property
    def children(self) -> tuple[Body, ...]:
        """The bodies that attributes of the nodes hold, one level down."""
        return tuple(body for bodies in self.held.values() for body in bodies.values())

    def _grouped(self) -> Mapping[tuple[str, str], list[int]]:
        groups: dict[tuple[str, str], list[int]] = {}
        for index, proto in enumerate(self._protos):
            key = (proto.domain, proto.op_type)
            if key in groups:
                groups[key].append(index)
            else:
                groups[key] = [index]
        check_text((text for key in groups for text in key), self.scope.place)
        merged: dict[tuple[str, str], list[int]] = {}
        for (domain, op), indexes in groups.items():
            merged.setdefault((_domain(domain), op), []).extend(indexes)
        return {key: sorted(indexes) for key, indexes in merged.items()}

    def _held_by(self, index: int) -> Iterator[tuple[str, Body]]:
        node = self.node(index)
        for at, attribute in enumerate(node.proto.attribute):
            where = f"{attribute.name} of {node.label}"
            path = (*node.path, (_ATTRIBUTE, at))
            if attribute.HasField("g"):
                of_one = Body.of_graph(self.scope.file, where, (*path, (_SUBGRAPH, 0)), attribute.g)
                yield attribute.name, of_one
            for number, graph in enumerate(attribute.graphs):
                at_number = (*path, (_SUBGRAPHS, number))
                of_many = Body.of_graph(self.scope.file, f"{where}[{number}]", at_number, graph)
                yield f"{attribute.name}[{number}]", of_many


def _domain(domain: str) -> str:
    return STANDARD if domain == "ai.onnx" else domain
