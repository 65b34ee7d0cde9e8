"""Splices against protobuf: the spliced bytes parse to what the same change in onnx gives."""

from __future__ import annotations

import random
from pathlib import Path

import onnx
import pytest
from builders import tiny_pack

from packimport.graph.changes.splices import Splices
from packimport.graph.onnx_file import OnnxFile, node_message
from packimport.pack.additions import data_of
from packimport.pack.container import open_container

GRAPH = ((7, 0),)


def spliced(file: OnnxFile, splices: Splices) -> bytes:
    return b"".join(map(bytes, map(data_of, splices.applied(file.wire, file.view))))


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    return tiny_pack(tmp_path / "p", inline=True, constants=True)


def test_nothing_changes_nothing(pack: Path) -> None:
    file = OnnxFile(open_container(pack), "model.onnx")
    splices = Splices()
    assert not splices
    assert spliced(file, splices) == (pack / "model.onnx").read_bytes()


@pytest.mark.parametrize("seed", range(20))
def test_nodes_and_tensors(pack: Path, seed: int) -> None:
    file = OnnxFile(open_container(pack), "model.onnx")
    expected = onnx.load(pack / "model.onnx")
    graph, rng, splices = expected.graph, random.Random(seed), Splices()
    count = len(graph.node)
    removed = set(rng.sample(range(count), rng.randrange(4)))
    replaced = set(rng.sample(range(count), rng.randrange(4)))
    nodes: list[onnx.NodeProto] = []
    for index in range(count + 1):
        for number in range(rng.choice([0, 0, 0, 1, 2])):
            new = onnx.helper.make_node("Identity", ["a"], [f"{index}.{number}"], f"n{index}")
            message = node_message("Identity", ["a"], [f"{index}.{number}"], f"n{index}")
            splices.inserted.setdefault((GRAPH, 1), {}).setdefault(index, []).append(message)
            nodes.append(new)
        if index == count:
            break
        node = onnx.NodeProto.FromString(graph.node[index].SerializeToString())
        path = (*GRAPH, (1, index))
        if index in removed:
            splices.replaced[path] = None
            continue
        if index in replaced:
            node.doc_string = "x" * rng.choice([3, 200, 70000])
            splices.replaced[path] = node.SerializeToString()
        nodes.append(node)
    del graph.node[:]
    graph.node.extend(nodes)
    tensor = graph.initializer[seed % len(graph.initializer)]
    tensor.raw_data = tensor.raw_data * 3
    splices.replaced[(*GRAPH, (5, seed % len(graph.initializer)))] = tensor.SerializeToString()
    added = onnx.helper.make_tensor("added", onnx.TensorProto.INT64, [1], [seed])
    graph.initializer.append(added)
    splices.inserted[GRAPH, 5] = {len(graph.initializer) - 1: [added.SerializeToString()]}
    assert onnx.ModelProto.FromString(spliced(file, splices)) == expected


def test_bytes_are_written_in_place(pack: Path) -> None:
    file = OnnxFile(open_container(pack), "model.onnx")
    old = (pack / "model.onnx").read_bytes()
    at = old.index(b"tests/builders.py")
    message = node_message("Identity", ["logits"], ["more"], "more")
    splices = Splices(
        written={at: b"other/builder.py_"},
        inserted={(GRAPH, 1): {10_000: [message]}},
    )
    model = onnx.ModelProto.FromString(spliced(file, splices))
    assert model.producer_name == "other/builder.py_"
    assert model.graph.node[-1].name == "more"


def test_the_weights_are_not_copied(pack: Path) -> None:
    file = OnnxFile(open_container(pack), "model.onnx")
    message = node_message("Identity", ["logits"], ["more"], "more")
    splices = Splices(inserted={(GRAPH, 1): {0: [message]}})
    new = [p for p in splices.applied(file.wire, file.view) if isinstance(p, bytes)]
    assert sum(map(len, new)) < len(message) + 20
