"""Byte spans of tables: proven against what onnx 1.23.2 loads, and refused where they are odd."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from builders import plain, tiny_pack
from graphs import copy_of, edit, facts, node, the_reason
from onnx import TensorProto, numpy_helper

from packimport.errors import PackimportError
from packimport.graph.encodings import decode
from packimport.graph.site import TensorSpan
from packimport.pack.container import Container, open_container

DTYPES = ("float32", "float16", "bfloat16")


def loaded(pack: Path) -> dict[str, np.ndarray]:
    """Every constant of the main graph by name, loaded by onnx."""
    model = onnx.load(pack / "model.onnx")
    constants = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    for made in model.graph.node:
        if made.op_type == "Constant":
            constants[made.output[0]] = numpy_helper.to_array(made.attribute[0].t)
    return constants


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("form", ["gqa", "rotary_embedding"])
@pytest.mark.parametrize("inline", [True, False])
@pytest.mark.parametrize("lies", ["shared", "per layer", "shared constants", "constants per layer"])
def test_the_bytes_at_a_span_are_the_table(
    dtype: str, form: str, inline: bool, lies: str, tmp_path: Path
) -> None:
    shared, constants = "shared" in lies, "constants" in lies
    tables = None if shared else (lambda layer: plain(64, 8, 10000.0 + layer))
    pack = tiny_pack(tmp_path / "p", dtype=dtype, form=form, inline=inline, constants=constants,
                     shared=shared, tables=tables)  # fmt: skip
    found = facts(pack)
    assert not found.unread
    assert len(found.sites) == (1 if shared else 2)
    expected = loaded(pack)
    container = open_container(pack)
    for site in found.sites:
        assert site.cos.file == ("model.onnx" if inline or constants else "model.onnx.data")
        for span, values in zip((site.cos, site.sin), decode(site, container), strict=True):
            data = (pack / span.file).read_bytes()[span.offset : span.offset + span.length]
            assert data == expected[span.name].tobytes()
            assert np.array_equal(values, expected[span.name])
            assert (span.dtype, values.dtype.name, span.shape) == (dtype, dtype, values.shape)


@pytest.mark.parametrize("rows", [1, 3])
def test_tables_too_small_to_be_cut_out_have_spans_as_well(rows: int, tmp_path: Path) -> None:
    pack = tiny_pack(tmp_path / "p", inline=True, tables=plain(rows, 8))
    (site,) = facts(pack).sites
    assert np.array_equal(decode(site, open_container(pack))[1], loaded(pack)["sin"])


def test_a_table_as_a_list_of_floats(tmp_path: Path) -> None:
    cos, _ = plain(40, 8)

    def change(model: onnx.ModelProto) -> None:
        for tensor in model.graph.initializer:
            if tensor.name == "cos":
                values = cos.astype(np.float32).ravel()
                tensor.CopyFrom(onnx.helper.make_tensor("cos", TensorProto.FLOAT, [40, 8], values))
                assert not tensor.raw_data

    pack = tiny_pack(tmp_path / "p", inline=True, tables=plain(40, 8), change=change)
    (site,) = facts(pack).sites
    assert np.array_equal(decode(site, open_container(pack))[0], loaded(pack)["cos"])


def test_float16_as_a_list_of_integers_is_not_read(tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        for tensor in model.graph.initializer:
            if tensor.name == "cos":
                integers = np.frombuffer(tensor.raw_data, np.uint16).astype(int)
                tensor.ClearField("raw_data")
                tensor.int32_data[:] = integers.tolist()

    pack = tiny_pack(tmp_path / "p", inline=True, dtype="float16", change=change)
    assert "its cos table stores float16 as a list" in facts(pack).unread[0].reason


# --- weights -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["oga-0.11.2-llama3", "amd-oga-0.7.0.1-llama3-int4-dml"])
def test_only_the_spans_of_tables_are_read(name: str, monkeypatch: pytest.MonkeyPatch,
                                             tmp_path: Path) -> None:  # fmt: skip
    """The data file holds the tables and holes: the facts are the same, and nothing else is
    read."""
    pack = copy_of(name, tmp_path)
    before = facts(pack)
    (site,) = before.sites
    tables = {(s.offset, s.length) for s in (site.cos, site.sin)}
    data = (pack / site.cos.file).read_bytes()
    with (pack / site.cos.file).open("wb") as file:
        file.truncate(len(data))
        for offset, length in tables:
            file.seek(offset)
            file.write(data[offset : offset + length])
    asked: list[tuple[str, int, int]] = []
    original = Container.span

    def spy(self: Container, file: str, offset: int, length: int) -> memoryview:
        asked.append((file, offset, length))
        return original(self, file, offset, length)

    monkeypatch.setattr(Container, "span", spy)
    monkeypatch.setattr(Container, "read_bytes", None)
    monkeypatch.setattr(Container, "resolve", lambda self, name: self.entries[name].path)
    assert facts(pack) == before
    assert {file for file, _, _ in asked} == {"model.onnx"}
    asked.clear()
    cos, _ = decode(site, open_container(pack))
    assert {(offset, length) for _, offset, length in asked} == tables
    assert cos.tobytes() == data[site.cos.offset : site.cos.offset + site.cos.length]


# --- odd spans -----------------------------------------------------------------------------


def external(name: str, **entries: str) -> Callable[[onnx.ModelProto], None]:
    """Sets keys of a tensor's external data; a key given as "" is left out."""

    def change(model: onnx.ModelProto) -> None:
        (tensor,) = [t for t in model.graph.initializer if t.name == name]
        known = {entry.key: entry.value for entry in tensor.external_data} | entries
        del tensor.external_data[:]
        for key, value in known.items():
            if value:
                tensor.external_data.add(key=key, value=value)

    return change


def span_of(pack: Path) -> TensorSpan:
    return facts(pack).sites[0].cos


@pytest.mark.parametrize("tensor", ["cos", "sin", "embedding"])
@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"offset": "-1"}, "offset of external data is no number"),
        ({"offset": "0x10"}, "offset of external data is no number"),
        ({"offset": "٣"}, "offset of external data is no number"),
        ({"offset": " 0"}, "offset of external data is no number"),
        ({"offset": "1" * 400}, "offset of external data is no number"),
        ({"offset": str(2**63 - 1)}, "end beyond"),
        ({"offset": "999999"}, "end beyond"),
        ({"length": "99999999"}, "end beyond"),
        ({"length": "-4"}, "length of external data is no number"),
        ({"location": "../model.onnx.data"}, "leaves its folder"),
        ({"location": "/absolute"}, "absolute"),
        ({"location": "C:\\x"}, "drive letter|backslash"),
        ({"location": "absent.data"}, "missing"),
        ({"location": ""}, "empty"),
        ({"location": "model.onnx"}, "file of another kind"),
        ({"location": "genai_config.json"}, "file of another kind"),
    ],
)
def test_odd_external_data_is_refused(
    tensor: str, entries: dict[str, str], message: str, tmp_path: Path
) -> None:
    pack = tiny_pack(tmp_path / "p")
    with pytest.raises(PackimportError, match=message):
        facts(edit(pack, external(tensor, **entries)))


def test_a_key_that_stands_twice_is_refused(tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        model.graph.initializer[0].external_data.add(key="offset", value="8")

    with pytest.raises(PackimportError, match="twice"):
        facts(edit(tiny_pack(tmp_path / "p"), change))


@pytest.mark.parametrize("length", ["2047", "2049", "4"])
def test_a_length_that_contradicts_the_dims_is_refused(length: str, tmp_path: Path) -> None:
    pack = tiny_pack(tmp_path / "p")
    assert span_of(pack).length == 2048
    with pytest.raises(PackimportError, match="not as many as the dims say"):
        facts(edit(pack, external("cos", length=length)))


def test_an_unstated_length_is_that_of_the_dims(tmp_path: Path) -> None:
    pack = tiny_pack(tmp_path / "p")
    before = span_of(pack)
    assert span_of(edit(pack, external("cos", length="", offset=""))) == before


def test_inline_values_that_contradict_the_dims_are_refused(tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        (tensor,) = [t for t in model.graph.initializer if t.name == "sin"]
        tensor.raw_data = tensor.raw_data[:-4]

    pack = tiny_pack(tmp_path / "p", inline=True)
    with pytest.raises(PackimportError, match="not as many as the dims say"):
        facts(edit(pack, change))


@pytest.mark.parametrize(
    ("dims", "reason"),
    [([512], "has shape"), ([1, 64, 8], "has shape"), ([0, 8], "has shape"), ([64, 4], None)],
)
def test_shapes_that_no_table_has(dims: list[int], reason: str | None, tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        for tensor in model.graph.initializer:
            if tensor.name in {"cos", "sin"}:
                tensor.dims[:] = dims

    pack = edit(tiny_pack(tmp_path / "p", layers=1), change)
    if reason is None:
        with pytest.raises(PackimportError, match="not as many as the dims say"):
            facts(pack)
    else:
        assert reason in the_reason(facts(pack)).reason


def test_dims_too_large_to_be_true(tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        for tensor in model.graph.initializer:
            tensor.dims[:] = [2**40, 2**40]

    with pytest.raises(PackimportError, match="not as many as the dims say"):
        facts(edit(tiny_pack(tmp_path / "p"), change))


def test_dtypes_that_no_table_has(tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        for tensor in model.graph.initializer:
            if tensor.name in {"cos", "sin"}:
                tensor.data_type = TensorProto.INT32

    pack = edit(tiny_pack(tmp_path / "p", layers=1), change)
    assert "its cos table has dtype int32" in the_reason(facts(pack)).reason


def test_cos_and_sin_that_differ(tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        (sin,) = [t for t in model.graph.initializer if t.name == "sin"]
        half = plain(32, 8)[1].astype(ml_dtypes.bfloat16)
        sin.CopyFrom(numpy_helper.from_array(half, "sin"))

    pack = tiny_pack(tmp_path / "p", layers=1, inline=True, change=change)
    reason = the_reason(facts(pack)).reason
    assert "cos is float32 [64, 8], sin is bfloat16 [32, 8]" in reason


# --- files that are cut or are none --------------------------------------------------------


@pytest.mark.parametrize("name", ["oga-0.18.0-qwen3", "oga-0.18.0-longrope-if"])
def test_a_cut_graph_ends_in_an_error_or_in_fewer_facts(name: str, tmp_path: Path) -> None:
    pack = copy_of(name, tmp_path)
    data = (pack / "model.onnx").read_bytes()
    whole = facts(pack)
    refused = 0
    for size in range(0, len(data), 97):
        (pack / "model.onnx").write_bytes(data[:size])
        try:
            found = facts(pack)
        except PackimportError as error:
            assert "model.onnx" in str(error)
            refused += 1
        else:
            assert found == whole  # cut after the graph, in what describes it
    assert refused > len(data) // 97 - 5


def test_a_pointer_in_place_of_the_graph(tmp_path: Path) -> None:
    pack = tiny_pack(tmp_path / "p")
    (pack / "model.onnx").write_text("version https://git-lfs.github.com/spec/v1\noid x\n")
    with pytest.raises(PackimportError, match="git lfs pull"):
        facts(pack)


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    pack = tiny_pack(tmp_path / "p", inline=True)
    data = (pack / "model.onnx").read_bytes()
    assert b"seqlens_k" in data
    (pack / "model.onnx").write_bytes(data.replace(b"seqlens_k", b"seqlens\xff\xfe"))
    with pytest.raises(PackimportError, match="not UTF-8"):
        facts(pack)


def test_two_nodes_that_make_one_value(tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        node(model, "Sigmoid").output[0] = "logits"

    with pytest.raises(PackimportError, match="two nodes make one value"):
        facts(edit(tiny_pack(tmp_path / "p"), change))


# --- graphs made to exhaust a reader -------------------------------------------------------


def test_bodies_nested_deeper_than_protobuf_parses(tmp_path: Path) -> None:
    """Small enough that the walker keeps it whole: protobuf's own limit ends it."""

    def message(number: int, content: bytes) -> bytes:
        size = bytes([len(content) & 127 | 128, len(content) >> 7])
        return bytes([number << 3 | 2]) + size + content

    graph = b""
    for _ in range(40):
        graph = message(1, message(5, message(6, graph)))
    pack = tiny_pack(tmp_path / "p")
    (pack / "model.onnx").write_bytes(message(7, graph))
    with pytest.raises(PackimportError, match="damaged"):
        facts(pack)


def chain(length: int, model: onnx.ModelProto) -> None:
    """A chain of Identity nodes between the cos table and the first attention."""
    names = ["cos", *(f"link{index}" for index in range(length))]
    for index in reversed(range(length)):
        made = onnx.helper.make_node("Identity", [names[index]], [names[index + 1]])
        model.graph.node.insert(0, made)
    node(model, "GroupQueryAttention").input[7] = names[-1]


def test_a_value_that_comes_from_too_far(tmp_path: Path) -> None:
    near, far = (tiny_pack(tmp_path / name) for name in ("near", "far"))
    assert facts(edit(near, lambda model: chain(20, model))).unread == ()
    with pytest.raises(PackimportError, match="too far"):
        facts(edit(far, lambda model: chain(300, model)))


def test_a_value_that_comes_from_itself(tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        for taken, made in (("a", "b"), ("b", "a")):
            model.graph.node.append(onnx.helper.make_node("Identity", [taken], [made]))
        node(model, "GroupQueryAttention").input[7] = "a"

    with pytest.raises(PackimportError, match="round in circles"):
        facts(edit(tiny_pack(tmp_path / "p"), change))


def test_a_query_that_comes_from_itself(tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        for taken, made in (("a", "b"), ("b", "a")):
            model.graph.node.append(onnx.helper.make_node("Reshape", [taken, "one"], [made]))
        node(model, "GroupQueryAttention").input[0] = "a"

    reason = the_reason(facts(edit(tiny_pack(tmp_path / "p"), change))).reason
    assert "its query comes from a, and no projection makes that" in reason
