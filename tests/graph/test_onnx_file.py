"""The door to onnx: nodes, maps, bodies; against onnx 1.23.2 itself."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from builders import tiny_pack
from graphs import PACKS, edit, node
from onnx import helper

from packimport.errors import GraphError
from packimport.graph.onnx_file import OnnxFile, check
from packimport.graph.protos import DTYPES, EXTERNAL, INT, TENSOR
from packimport.pack.container import open_container

EVERY = sorted(path.name for path in PACKS.iterdir())


def file_of(pack: Path) -> OnnxFile:
    return OnnxFile(open_container(pack), "model.onnx")


def test_numbers_are_those_of_onnx() -> None:
    names = {"float32": "FLOAT", "float64": "DOUBLE"}
    for number, name in DTYPES.items():
        assert onnx.TensorProto.DataType.Name(number) == names.get(name, name.upper())
    assert onnx.AttributeProto.INT == INT
    assert onnx.AttributeProto.TENSOR == TENSOR
    assert onnx.TensorProto.EXTERNAL == EXTERNAL


@pytest.mark.parametrize("name", EVERY)
def test_nodes_and_maps_are_those_of_onnx(name: str) -> None:
    file = file_of(PACKS / name)
    model = onnx.load(PACKS / name / "model.onnx", load_external_data=False)
    body = file.main
    assert len(body) == len(model.graph.node)
    for index, expected in enumerate(model.graph.node):
        made = body.node(index)
        assert (made.op, made.domain, made.name) == (
            expected.op_type,
            expected.domain,
            expected.name,
        )
        assert (list(made.inputs), list(made.outputs)) == (expected.input, expected.output)
        for output in filter(None, expected.output):
            producer = body.producer(output)
            assert producer is not None
            assert producer.index == index
        for value in expected.input:
            assert index in body.consumers[value]
    assert sum(map(len, body.ops.values())) == len(body)
    assert body.is_sorted
    assert list(body.inputs) == [value.name for value in model.graph.input]
    assert list(body.outputs) == [value.name for value in model.graph.output]
    assert {t.name: t.shape for t in body.tensors()} == {
        t.name: tuple(t.dims) for t in model.graph.initializer
    }
    assert file.opsets == {opset.domain: opset.version for opset in model.opset_import}


def test_bodies_of_an_if() -> None:
    file = file_of(PACKS / "oga-0.18.0-longrope-if")
    assert [body.scope.where for body in file.bodies()] == [
        "",
        "then_branch of /model/rope_caches_subgraph/If",
        "else_branch of /model/rope_caches_subgraph/If",
    ]
    _, large, small = file.bodies()
    tables = [
        node.tensor("value") for body in (large, small) for node in body.nodes("", "Constant")
    ]
    assert [(t.name, t.shape) for t in tables if t is not None] == [
        ("cos_cache_large", (1024, 8)),
        ("sin_cache_large", (1024, 8)),
        ("cos_cache_small", (256, 8)),
        ("sin_cache_small", (256, 8)),
    ]


def test_payloads_inside_an_if_are_those_of_onnx() -> None:
    pack = PACKS / "oga-0.18.0-longrope-if"
    file, data = file_of(pack), (pack / "model.onnx").read_bytes()
    model = onnx.load(pack / "model.onnx", load_external_data=False)
    branches = [a.g for a in node(model, "If").attribute]
    for body, branch in zip(list(file.bodies())[1:], branches, strict=True):
        for made, expected in zip(body.nodes("", "Constant"), branch.node, strict=True):
            tensor = made.tensor("value")
            assert tensor is not None
            payload = file.payload(tensor)
            assert payload is not None
            assert data[payload.start : payload.stop] == expected.attribute[0].t.raw_data


def test_opset_and_domain_of_old_files(tmp_path: Path) -> None:
    """ "ai.onnx" is another spelling of the default domain."""

    def change(model: onnx.ModelProto) -> None:
        for made in model.graph.node:
            made.domain = made.domain or "ai.onnx"

    file = file_of(edit(tiny_pack(tmp_path / "p"), change))
    assert len(list(file.main.nodes("", "MatMul"))) == 15


def test_a_graph_stored_in_two_parts(tmp_path: Path) -> None:
    """Protobuf joins the parts of a message; a span counted in one of them would be wrong."""
    pack = tiny_pack(tmp_path / "p", inline=True)
    model = onnx.load(pack / "model.onnx")
    first, second = onnx.ModelProto(), onnx.ModelProto()
    second.CopyFrom(model)
    first.graph.initializer.append(helper.make_tensor("first", 1, [1], [1.0]))
    (pack / "model.onnx").write_bytes(first.SerializeToString() + second.SerializeToString())
    file = file_of(pack)
    tensor = file.main.tensor("cos")
    assert tensor is not None
    with pytest.raises(GraphError, match=r"not where the parser saw it|stored in parts"):
        file.payload(tensor)


def test_a_file_without_a_graph(tmp_path: Path) -> None:
    pack = tiny_pack(tmp_path / "p")
    (pack / "model.onnx").write_bytes(onnx.ModelProto(ir_version=10).SerializeToString())
    with pytest.raises(GraphError, match="no graph in it"):
        file_of(pack)


def test_checker_messages(tmp_path: Path) -> None:
    pack = tiny_pack(tmp_path / "p")
    before = check(pack / "model.onnx")
    assert "SimplifiedLayerNormalization" in before[0]
    assert str(tmp_path) not in before[0]

    def drop(model: onnx.ModelProto) -> None:
        del model.graph.node[:]
        del model.graph.output[:]

    assert check(edit(pack, drop) / "model.onnx") == []
