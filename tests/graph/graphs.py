"""What the tests of the graph layer share: packs by name, facts of a pack, edits of a graph."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
from builders import INPUTS

from packimport.graph.find import find_sites
from packimport.graph.site import GraphFacts, Hints, Unread
from packimport.pack.container import open_container

PACKS = Path(__file__).parent.parent / "packs"
HINTS = Hints(past_key_names=INPUTS["past_key_names"])


def facts(pack: Path, hints: Hints = HINTS, graph: str = "model.onnx") -> GraphFacts:
    return find_sites(open_container(pack), graph, hints)


def copy_of(name: str, folder: Path) -> Path:
    return shutil.copytree(PACKS / name, folder / name)


def edit(pack: Path, change: Callable[[onnx.ModelProto], None], graph: str = "model.onnx") -> Path:
    """Change a graph on disk, its external data untouched; the pack."""
    model = onnx.load(pack / graph, load_external_data=False)
    change(model)
    (pack / graph).write_bytes(model.SerializeToString())
    return pack


def node(model: onnx.ModelProto, op: str, index: int = 0) -> onnx.NodeProto:
    return [n for n in model.graph.node if n.op_type == op][index]


def set_attribute(target: onnx.NodeProto, name: str, value: Any) -> None:
    for attribute in [a for a in target.attribute if a.name == name]:
        target.attribute.remove(attribute)
    target.attribute.append(onnx.helper.make_attribute(name, value))


def insert_before(model: onnx.ModelProto, target: onnx.NodeProto, *new: onnx.NodeProto) -> None:
    at = list(model.graph.node).index(target)
    for offset, made in enumerate(new):
        model.graph.node.insert(at + offset, made)


def the_reason(found: GraphFacts) -> Unread:
    """The only Unread of a graph."""
    assert len(found.unread) == 1, found.unread
    return found.unread[0]
