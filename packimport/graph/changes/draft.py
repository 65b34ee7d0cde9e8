"""Draft: the main graph of one ONNX file under change.

Changes are collected, and made at once by `replacement`. Nodes keep their names and
their order; what is new has unused names that begin with `packimport/`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from packimport.graph.changes.room import Room
from packimport.graph.changes.splices import Splices
from packimport.graph.node import Node, Tensor
from packimport.graph.onnx_file import (
    OnnxFile,
    changed_node,
    copied_node,
    node_message,
    tensor_message,
)
from packimport.graph.wire import MAX_FILE, Path
from packimport.pack.additions import Replacement
from packimport.pack.digests import CHUNK
from packimport.pack.file_view import FileView
from packimport.pack.manifest import GraphChangeRecord

_MAIN: Path = ((7, 0),)
_NODE, _INITIALIZER = 1, 5
_PREFIX = "packimport/"
# Initializers that are no inputs came with IR version 4, Slice and Range with these
# inputs with opset 13 at the latest.
_OLDEST_IR, _OLDEST_OPSET = 4, 13


class Unchangeable(Exception):
    """A change that this graph does not allow: why, in one clause."""


class Draft:
    """Changes of one file, and the log of them.

    file: as it is. room: where new tables go. log: what was changed, for the manifest.
    """

    def __init__(self, file: OnnxFile, room: Room) -> None:
        self.file = file
        self.room = room
        self.log: list[GraphChangeRecord] = []
        self.splices = Splices()
        self._nodes: dict[int, Node] = {}
        self._inputs: dict[int, list[str]] = {}
        self._integers: dict[int, dict[str, int]] = {}
        self._removed: set[int] = set()
        self._taken: set[str] | None = None

    def note(self, where: str, change: str, reason: str) -> None:
        """Log one change: a node or tensor, what is done to it, and why."""
        record = GraphChangeRecord(graph=self.file.name, where=where, change=change, reason=reason)
        if record not in self.log:
            self.log.append(record)

    def new_name(self, name: str) -> str:
        """An unused name for a new node or value."""
        if self._taken is None:
            self._taken = set(self._names())
        made, number = _PREFIX + name, 2
        while made in self._taken:
            made, number = f"{_PREFIX}{name}_{number}", number + 1
        self._taken.add(made)
        return made

    def input(self, node: Node, index: int) -> str:
        """The name of an input of a node, as changed so far."""
        inputs = self._inputs.get(node.index, node.inputs)
        return inputs[index] if index < len(inputs) else ""

    def set_input(self, node: Node, index: int, name: str) -> None:
        """Let a node take another value; "" leaves the input out."""
        self._nodes[node.index] = node
        inputs = self._inputs.setdefault(node.index, list(node.inputs))
        inputs += [""] * (index + 1 - len(inputs))
        inputs[index] = name

    def set_integer(self, node: Node, name: str, value: int) -> None:
        """Set an integer attribute of a node."""
        self._nodes[node.index] = node
        self._integers.setdefault(node.index, {})[name] = value

    def remove(self, node: Node) -> None:
        """Take a node out. Whoever took its outputs has to take others."""
        self._removed.add(node.index)

    def insert(self, before: Node, message: bytes) -> None:
        """A new node that runs right before `before`."""
        self._inserted(_NODE).setdefault(before.index, []).append(message)

    def insert_node(
        self,
        before: Node,
        op: str,
        inputs: Sequence[str],
        name: str,
        *,
        integers: Mapping[str, int] | None = None,
    ) -> str:
        """A new node of ONNX's own domain with one output; the name of the output."""
        self.refuse_old()
        own, output = self.new_name(f"{name}/{op}"), self.new_name(name)
        self.insert(before, node_message(op, inputs, [output], own, integers=integers))
        return output

    def copy_node(self, before: Node, node: Node, inputs: Sequence[str]) -> str:
        """A second `node` with other inputs and one output, right before `before`; the output."""
        own, output = self.new_name(node.name or node.op), self.new_name(node.outputs[0])
        self.insert(before, copied_node(node, inputs, output, own))
        return output

    def add_constant(self, name: str, dtype: str, shape: Sequence[int], values: bytes) -> str:
        """A new small constant, inline; its name."""
        self.refuse_old()
        made = self.new_name(name)
        self.add_initializer(tensor_message(made, dtype, shape, values))
        return made

    def add_initializer(self, message: bytes) -> None:
        """A new constant of the main graph."""
        behind = len(self.file.main.tensor_names)
        self._inserted(_INITIALIZER).setdefault(behind, []).append(message)

    def replace_tensor(self, tensor: Tensor, message: bytes) -> None:
        """Another constant in the place of `tensor`."""
        self.splices.replaced[tensor.path] = message

    def reshape_value(self, name: str, shape: Sequence[int]) -> None:
        """Correct what the graph states of a value's shape, if it does."""
        self.splices.replaced.update(self.file.value_messages(name, shape))

    def forget_value(self, name: str) -> None:
        """Drop what the graph states of a value that is made no more."""
        self.splices.replaced.update(dict.fromkeys(self.file.value_messages(name, ())))

    def replacement(self) -> Replacement | None:
        """The changed file; None where nothing is changed."""
        data = self.file.view
        for index, node in self._nodes.items():
            if index in self._removed:
                continue
            inputs = self._inputs.get(index, list(node.inputs))
            message = changed_node(node, inputs, self._integers.get(index, {}))
            self.splices.replaced[node.path] = message
        for index in self._removed:
            self.splices.replaced[self.file.main.node(index).path] = None
        if not self.splices:
            return None
        graphs = sum(tag >> 3 == 7 for tag, *_ in self.file.wire.fields(0, len(data)))
        if graphs != 1:
            raise Unchangeable("the file stores its graph in parts")
        pieces = self.splices.applied(self.file.wire, data)
        if sum(map(len, pieces)) > MAX_FILE:
            raise Unchangeable("the graph would be larger than an ONNX file can be")
        return Replacement(
            file=self.file.name,
            old_size=len(data),
            old_sha256=_sha256(data),
            pieces=pieces,
            reason="; ".join(dict.fromkeys(record.reason for record in self.log)),
        )

    def refuse_old(self) -> None:
        """Raises Unchangeable where the graph is of a version that new parts don't fit in."""
        opset = self.file.opsets.get("", self.file.opsets.get("ai.onnx", 0))
        if self.file.ir_version < _OLDEST_IR or opset < _OLDEST_OPSET:
            raise Unchangeable(
                f"the graph has opset {opset} and IR version {self.file.ir_version};"
                f" {_OLDEST_OPSET} and {_OLDEST_IR} are the oldest that can be changed"
            )

    def _inserted(self, field: int) -> dict[int, list[bytes]]:
        return self.splices.inserted.setdefault((_MAIN, field), {})

    def _names(self) -> list[str]:
        names: list[str] = []
        for body in self.file.bodies():
            names += [*body.inputs, *body.outputs, *body.tensor_names, *body.sparse]
            for index in range(len(body)):
                node = body.node(index)
                names += [node.name, *node.outputs]
        return names


def _sha256(data: FileView) -> str:
    digest = hashlib.sha256()
    for start in range(0, len(data), CHUNK):
        digest.update(data[start : start + CHUNK])
    return digest.hexdigest()
