"""The packs that the tests of Ryzen AI build are as the facts have them."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from ryzen_graphs import Shape
from ryzen_packs import FAMILIES, Pack, build
from ryzen_tables import LLAMA3

TESTS = Path(__file__).parent.parent
ROWS = 64
FUSED = sorted(name for name, family in FAMILIES.items() if family.fused)
GQO = [
    ("hybrid 1.4", "com.ryzenai", 10, 5),
    ("hybrid 1.4, 11 inputs", "com.ryzenai", 11, 5),
    ("hybrid 1.4, com.amd", "com.amd", 10, 5),
    ("hybrid 1.7", "com.ryzenai", 17, 7),
    ("npu 1.6", "com.ryzenai", 17, 7),
    ("eager 1.8", "com.ryzenai", 17, 7),
    ("token fusion 1.8", "com.ryzenai", 17, 7),
]


def made(family: str, folder: Path, **options: object) -> Pack:
    return build(family, folder / "pack", LLAMA3, tables=LLAMA3.right(ROWS), **options)


def bodies(model: onnx.ModelProto) -> Iterator[tuple[str, onnx.GraphProto]]:
    """The main graph and the branches of its If, by name of the attribute."""
    yield "", model.graph
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield attribute.name, attribute.g


def nodes(model: onnx.ModelProto, op: str) -> list[onnx.NodeProto]:
    return [node for _, body in bodies(model) for node in body.node if node.op_type == op]


@pytest.mark.parametrize("module", ["ryzen_packs", "ryzen_graphs", "ryzen_tables", "builders"])
def test_builders_know_nothing_of_the_code_under_test(module: str) -> None:
    tree = ast.parse((TESTS / f"{module}.py").read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        else:
            continue
        assert not [n for n in names if n.split(".")[0] in ("packimport", "forward")]


@pytest.mark.parametrize(("family", "domain", "count", "cos"), GQO)
def test_gqo(family: str, domain: str, count: int, cos: int, tmp_path: Path) -> None:
    model = made(family, tmp_path).model()
    found = nodes(model, "GQO")
    assert len(found) == Shape().layers
    for layer, node in enumerate(found):
        assert (node.domain, len(node.input)) == (domain, count)
        assert list(node.input[cos : cos + 2]) == ["cos_cache", "sin_cache"]
        assert f"past_key_values.{layer}.key" in node.input
        assert node.output[0] == f"present.{layer}.key"
    known = {t.name: t for _, body in bodies(model) for t in body.initializer}
    offloaded = [name for name in found[0].input[cos + 2 :] if name]
    assert offloaded
    assert all(list(known[name].dims) == [0] for name in offloaded)


def test_gqa_of_com_amd(tmp_path: Path) -> None:
    found = nodes(made("hybrid 1.4, com.amd GQA", tmp_path).model(), "AMDGroupQueryAttention")
    assert [(n.domain, len(n.input), n.input[7], n.input[8]) for n in found] == [
        ("com.amd", 9, "cos_cache", "sin_cache")
    ] * Shape().layers


@pytest.mark.parametrize("family", FUSED)
def test_combined_graphs(family: str, tmp_path: Path) -> None:
    model = made(family, tmp_path).model()
    assert [node.op_type for node in model.graph.node] == ["Shape", "Equal", "If"]
    branches = dict(bodies(model))
    outer = [value.name for value in model.graph.output]
    for name in ("then_branch", "else_branch"):
        assert not branches[name].input
        assert [value.name for value in branches[name].output] == outer
    constants = {
        node.output[0]: (node, branch)
        for branch, body in branches.items()
        for node in body.node
        if node.name == "sin_cos_cache"
    }
    token, branch = constants["sin_cos_cache_token"]
    assert branch == "then_branch"
    table = numpy_helper.to_array(token.attribute[0].t)
    assert token.attribute[0].t.raw_data
    assert table.shape == (ROWS, 2 * LLAMA3.pairs)
    cos, sin = (part.astype(np.float16) for part in LLAMA3.right(ROWS))
    for values, stored in ((cos, table[:, : LLAMA3.pairs]), (sin, table[:, LLAMA3.pairs :])):
        assert np.array_equal(stored, values.astype(ml_dtypes.bfloat16))
    (taker,) = (n for n in branches["then_branch"].node if "sin_cos_cache_token" in n.input)
    assert taker.op_type == "DynamicDispatch"
    assert ("sin_cos_cache_prefill" in constants) == (family == "full fusion 1.8")


def test_the_prefill_table_of_full_fusion(tmp_path: Path) -> None:
    branches = dict(bodies(made("full fusion 1.8", tmp_path).model()))
    (node,) = (n for n in branches["else_branch"].node if n.name == "sin_cos_cache")
    table = numpy_helper.to_array(node.attribute[0].t).astype(np.float64)
    assert table.shape == (2, ROWS, 4 * LLAMA3.pairs)
    for index, values in enumerate(LLAMA3.right(ROWS)):
        high, again, low, and_low = np.split(table[index], 4, axis=1)
        assert np.array_equal(high, again)
        assert np.array_equal(low, and_low)
        assert np.array_equal(high + low, values.astype(np.float16).astype(np.float64))
    (taker,) = (n for n in branches["else_branch"].node if "sin_cos_cache_prefill" in n.input)
    assert taker.op_type == "Slice"
    assert not [n for n in branches["else_branch"].node if n.op_type == "GQO"]


def test_the_data_file_holds_embedding_tables_and_norms_alone(tmp_path: Path) -> None:
    shape = Shape()
    pack = made("npu 1.6", tmp_path)
    halves = shape.vocab * shape.hidden + 2 * ROWS * LLAMA3.pairs
    halves += (2 * shape.layers + 1) * shape.hidden
    assert (pack.path / "fusion.onnx.data").stat().st_size == 2 * halves


FILES = {
    "hybrid 1.4": {"{n}_jit.onnx", "{n}_jit.onnx.data", "{n}_jit.bin", "{n}_jit.pb.bin"},
    "npu 1.6": {"fusion.onnx", "fusion.onnx.data", "prefill.bin", "prefill.pb.bin"}
    | {f"dd_metastate_Llm_Token_MatMulNBits_2_0.{e}" for e in ("state", "fconst")}
    | {".cache/MatMulNBits_2_0_meta.json", "rai_config.json"},
    "hybrid 1.7": {"model_jit.onnx", "model_jit.onnx.data", "model_jit.bin", "model_jit.pb.bin"},
    "eager 1.8": {"model.onnx", "model.onnx.data", "model.bin", "model.pb.bin"}
    | {"cache/txn_bins.zip", "cache/MatMulNBits_2_0_meta.json"},
}


@pytest.mark.parametrize("family", sorted(FILES))
def test_files(family: str, tmp_path: Path) -> None:
    pack = made(family, tmp_path)
    there = {p.relative_to(pack.path).as_posix() for p in pack.path.rglob("*") if p.is_file()}
    wanted = {name.format(n="Llama-3.2-1B-Instruct") for name in FILES[family]}
    assert wanted | {"genai_config.json"} <= there
    config = pack.path / "config.json"
    assert config.exists() == (family != "hybrid 1.7")
    if family == "npu 1.6":
        assert json.loads(config.read_text(encoding="utf-8")) == {}


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_the_header_names_every_node_of_amds_domain(family: str, tmp_path: Path) -> None:
    pack = made(family, tmp_path)
    (header,) = pack.path.glob("*.pb.bin")
    found = header.read_bytes()
    own = [n.name for _, b in bodies(pack.model()) for n in b.node if n.domain]
    assert own
    assert all(name.encode() in found for name in own)
    settings = (pack.path / "genai_config.json").read_text(encoding="utf-8")
    assert f'"{header.name}"' in settings


def test_options(tmp_path: Path) -> None:
    other = LLAMA3.right(ROWS)
    own = LLAMA3.right(ROWS)
    pack = build(
        "hybrid 1.7", tmp_path / "pack", LLAMA3, tables=lambda layer: (own, other)[layer % 2],
        table_dtype="bfloat16", interleaved=True, rotary_dim=16, packed=False, place="constant",
    )  # fmt: skip
    model = pack.model()
    found = nodes(model, "GQO")
    assert [node.input[7] for node in found] == ["cos_cache", "cos_cache_1", "cos_cache"]
    assert all(node.input[1] and node.input[2] for node in found)
    given = {a.name: onnx.helper.get_attribute_value(a) for a in found[0].attribute}
    assert (given["rotary_interleaved"], given["rotary_embedding_dim"]) == (1, 16)
    (constant,) = (n for n in nodes(model, "Constant") if n.output[0] == "cos_cache")
    assert constant.attribute[0].t.data_type == onnx.TensorProto.BFLOAT16
