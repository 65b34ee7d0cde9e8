"""Walking a protobuf: what is left out, where it lies, and what is no protobuf at all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from graphs import PACKS
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper
from processes import PEAK

from packimport.errors import GraphError
from packimport.graph import wire
from packimport.graph.wire import FLOAT_DATA, RAW_DATA, Wire


def wire_of(data: bytes) -> Wire:
    return Wire(memoryview(data), "model.onnx")


def length_of(number: int, content: bytes) -> bytes:
    """A field `number` that holds `content`, written by protobuf's own rules."""
    return bytes([number << 3 | 2]) + varint(len(content)) + content


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def model_with(*tensors: onnx.TensorProto, nodes: tuple[onnx.NodeProto, ...] = ()) -> bytes:
    graph = helper.make_graph(list(nodes), "g", [], [], list(tensors))
    data: bytes = helper.make_model(graph).SerializeToString()
    return data


def big(name: str, size: int = 5000, seed: int = 0) -> onnx.TensorProto:
    values = np.random.default_rng(seed).standard_normal(size).astype(np.float32)
    return numpy_helper.from_array(values, name)


def test_slim_keeps_all_but_the_large_values() -> None:
    small = numpy_helper.from_array(np.arange(3, dtype=np.float32), "small")
    data = model_with(big("a"), small, big("b", seed=1))
    slim = onnx.ModelProto.FromString(bytes(wire_of(data).slim()))
    expected = onnx.ModelProto.FromString(data)
    for tensor in expected.graph.initializer:
        if tensor.name != "small":
            tensor.ClearField("raw_data")
    assert slim == expected


def test_a_file_without_large_values_is_not_copied() -> None:
    data = model_with()
    slim = Wire(memoryview(data), "x").slim()
    assert isinstance(slim, memoryview)
    assert slim.obj is data


# A path is (field, index) from the model down: 7 graph, 5 initializer, 1 node, 5 attribute,
# 5 t, 6 g. See onnx.proto.
def test_payload_of_initializers() -> None:
    tensors = [big("a"), big("b", 3, seed=1), big("c", seed=2)]
    data = model_with(*tensors)
    walker = wire_of(data)
    for index, tensor in enumerate(tensors):
        head, payload = walker.payload(((7, 0), (5, index)))
        assert payload is not None
        assert payload.number == RAW_DATA
        assert data[payload.start : payload.stop] == tensor.raw_data
        assert onnx.TensorProto.FromString(head).name == tensor.name


def test_payload_of_packed_floats() -> None:
    tensor = helper.make_tensor("t", TensorProto.FLOAT, [4], [0.5, 1.5, -2.0, 8.0])
    assert not tensor.raw_data
    data = model_with(tensor)
    _, payload = wire_of(data).payload(((7, 0), (5, 0)))
    assert payload is not None
    assert payload.number == FLOAT_DATA
    values = np.frombuffer(data[payload.start : payload.stop], "<f4")
    assert values.tolist() == [0.5, 1.5, -2.0, 8.0]


def test_payload_in_a_nested_body_and_in_a_function() -> None:
    constant = helper.make_node("Constant", [], ["c"], value=big("x", seed=7))
    body = helper.make_graph([constant], "then", [], [helper.make_empty_tensor_value_info("c")])
    branch = helper.make_node("If", ["p"], ["y"], then_branch=body, else_branch=body)
    function = helper.make_function("d", "F", [], ["c"], [constant], [helper.make_opsetid("", 21)])
    graph = helper.make_graph([helper.make_node("Add", ["a", "b"], ["p"]), branch], "g", [], [])
    data = helper.make_model(graph, functions=[function]).SerializeToString()
    raw = constant.attribute[0].t.raw_data
    walker = wire_of(data)
    names = [a.name for a in branch.attribute]
    for attribute in range(len(names)):
        in_body = ((7, 0), (1, 1), (5, attribute), (6, 0), (1, 0), (5, 0), (5, 0))
        _, payload = walker.payload(in_body)
        assert payload is not None
        assert data[payload.start : payload.stop] == raw
    _, payload = walker.payload(((25, 0), (7, 0), (5, 0), (5, 0)))
    assert payload is not None
    assert data[payload.start : payload.stop] == raw
    slim = onnx.ModelProto.FromString(bytes(walker.slim()))
    assert len(slim.SerializeToString()) < len(data) - 2 * len(raw)
    assert slim.graph.node[1].attribute[0].g.node[0].attribute[0].t.dims == [5000]


def test_values_that_stand_twice_are_refused() -> None:
    tensor = big("t", 300).SerializeToString()
    data = length_of(7, length_of(5, tensor + length_of(RAW_DATA, b"\0" * 1200)))
    with pytest.raises(GraphError, match="twice"):
        wire_of(data).payload(((7, 0), (5, 0)))


@pytest.mark.parametrize("name", sorted(path.name for path in PACKS.iterdir()))
def test_slim_of_real_graphs_parses_to_the_same_nodes(name: str) -> None:
    data = (PACKS / name / "model.onnx").read_bytes()
    slim = onnx.ModelProto.FromString(bytes(wire_of(data).slim()))
    full = onnx.ModelProto.FromString(data)
    assert [n.output for n in slim.graph.node] == [n.output for n in full.graph.node]
    assert [t.dims for t in slim.graph.initializer] == [t.dims for t in full.graph.initializer]


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "0 bytes"),
        (b"\x3a", "does not end"),
        (b"\x3a\x05abc", "runs past"),
        (b"\x3a\xff\xff\xff\xff\x7f", "runs past"),
        (b"\x3a" + b"\xff" * 9 + b"\x01", "runs past"),
        (b"\x3a" + b"\xff" * 20, "does not end"),
        (b"\x00\x00", "runs past"),
        (b"\x3b\x3c", "a group"),
        (b"\xba\x80\x80\x80\x80\x01\x00", "runs past"),
        (b"\x39\x00\x00", "runs past"),
        (b"\x3d\x00", "runs past"),
    ],
)
def test_bytes_that_are_no_protobuf(data: bytes, found: str) -> None:
    with pytest.raises(GraphError, match=found):
        wire_of(data).slim()


def test_a_length_that_runs_past_its_message_is_refused() -> None:
    node = b"\x0a" + varint(4000) + b"a" * 2000
    with pytest.raises(GraphError, match="runs past"):
        wire_of(length_of(7, length_of(1, node)) + b" " * 4000).slim()


def test_nesting_beyond_what_protobuf_parses_is_refused() -> None:
    graph = length_of(5, big("t").SerializeToString())
    for _ in range(40):
        graph = length_of(1, length_of(5, length_of(6, graph)))
    with pytest.raises(GraphError, match="nested too deep"):
        wire_of(length_of(7, graph)).slim()


def test_a_flood_of_fields_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_FIELDS", 1000)
    with pytest.raises(GraphError, match="too many fields"):
        wire_of(length_of(7, b"\x0a\x00" * 2000)).slim()


def test_a_flood_of_bytes_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "MAX_SLIM", 1000)
    with pytest.raises(GraphError, match="besides the values"):
        wire_of(length_of(7, length_of(10, b"d" * 2000))).slim()


@settings(max_examples=300)
@given(st.binary(max_size=3000))
def test_garbage_ends_in_an_error_or_in_the_same_bytes(data: bytes) -> None:
    try:
        slim = bytes(wire_of(data).slim())
    except GraphError:
        return
    assert slim == data or len(slim) < len(data)


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
def test_inline_weights_cost_no_memory(tmp_path: Path) -> None:
    """1.5 GB of inline weights, a hole in a sparse file, around a graph of a few bytes."""
    hole = 1_500_000_000
    head = length_of(8, b"weight") + b"\x08" + varint(hole // 4) + b"\x10\x01"
    head += b"\x4a" + varint(hole)
    tensor = b"\x2a" + varint(len(head) + hole) + head
    start = b"\x08\x0a\x3a" + varint(len(tensor) + hole) + tensor
    path = tmp_path / "model.onnx"
    path.write_bytes(start)
    with path.open("r+b") as file:
        file.truncate(len(start) + hole)
    script = (
        f"{PEAK}"
        "from packimport.graph.onnx_file import OnnxFile\n"
        "from packimport.pack.container import open_container\n"
        "before = peak()\n"
        f"file = OnnxFile(open_container({str(tmp_path)!r}), 'model.onnx')\n"
        "(tensor,) = file.main.tensors()\n"
        f"assert tensor.shape == ({hole // 4},)\n"
        "payload = file.payload(tensor)\n"
        f"assert payload.stop - payload.start == {hole}\n"
        "print(peak() - before)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) < 20_000_000
