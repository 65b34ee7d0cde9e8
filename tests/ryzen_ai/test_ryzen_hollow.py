"""Ryzen AI packs that look right and lack something: layers, rows, heads, parts of values."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper
from ryzen_graphs import Shape
from ryzen_packs import FAMILIES, Pack, build
from ryzen_reports import Change, edited, errors, judged
from ryzen_tables import GEMMA, LLAMA3, Declared, default, tables

from packimport import patch
from packimport.errors import PatchError

ROWS = 1024
FUSED = sorted(name for name, family in FAMILIES.items() if family.fused)
TOKEN, PREFILL = "sin_cos_cache_token", "sin_cos_cache_prefill"


def bodies(graph: onnx.GraphProto) -> list[onnx.GraphProto]:
    inner = [a.g for node in graph.node for a in node.attribute if a.HasField("g")]
    return [graph, *(body for held in inner for body in bodies(held))]


def nodes(model: onnx.ModelProto, op: str) -> list[onnx.NodeProto]:
    return [n for body in bodies(model.graph) for n in body.node if n.op_type == op]


def fused(model: onnx.ModelProto) -> onnx.NodeProto:
    """The compiled node of the token branch."""
    (found,) = [n for n in nodes(model, "DynamicDispatch") if TOKEN in n.input]
    return found


def made(family: str, folder: Path, change: Change | None = None, **options: object) -> Pack:
    pack = build(family, folder / "p", LLAMA3, tables=LLAMA3.right(ROWS), **options)  # type: ignore[arg-type]
    return edited(pack, change)


# --- layers ---------------------------------------------------------------------------------


def no_attention(model: onnx.ModelProto) -> None:
    """An op that is known not to rotate takes all caches in its place."""
    fused(model).op_type = "SSMLP"


def without_layer_1(model: onnx.ModelProto) -> None:
    node = fused(model)
    node.input[:] = [name for name in node.input if "values.1." not in name]


@pytest.mark.parametrize(
    ("change", "lost"), [(no_attention, "[0, 1, 2]"), (without_layer_1, "[1]")]
)
@pytest.mark.parametrize("family", FUSED)
def test_a_token_branch_that_lacks_layers(
    family: str, change: Change, lost: str, tmp_path: Path
) -> None:
    pack = made(family, tmp_path, change)
    report = judged(pack)
    assert (report.verdict, report.exit_code) == ("unsupported", 3), report.text()
    assert f"without the layers {lost}" in report.text()
    with pytest.raises(PatchError):
        patch(pack.path, tmp_path / "out", config=pack.config)
    assert not (tmp_path / "out").exists()


# --- rows -----------------------------------------------------------------------------------


def ends(end: int) -> Change:
    """The rows of the prompt end at a constant."""

    def change(model: onnx.ModelProto) -> None:
        for body in bodies(model.graph):
            for at, node in enumerate(body.node):
                if node.op_type == "Slice" and PREFILL in node.input:
                    node.input[2] = "end"
                    made = helper.make_node("Constant", [], ["end"], value_ints=[end])
                    body.node.insert(at, made)
                    return
        raise AssertionError("no Slice")

    return change


def token_rows(end: int) -> Change:
    """The compiled node is handed the first rows of the token table."""

    def change(model: onnx.ModelProto) -> None:
        node = fused(model)
        (body,) = [b for b in bodies(model.graph) if node in list(b.node)]
        node.input[:] = ["cut" if name == TOKEN else name for name in node.input]
        at = [n.op_type for n in body.node].index("DynamicDispatch")
        numbers = {"from": 0, "to": end, "axis": 0, "step": 1}
        new = [
            helper.make_node("Constant", [], [name], value_ints=[value])
            for name, value in numbers.items()
        ]
        new.append(helper.make_node("Slice", [TOKEN, *numbers], ["cut"]))
        for offset, inserted in enumerate(new):
            body.node.insert(at + offset, inserted)

    return change


@pytest.mark.parametrize(("end", "rows"), [(64, 64), (-1, 1023), (-900, 124), (2000, ROWS)])
@pytest.mark.parametrize("table", [TOKEN, PREFILL])
def test_a_cut_table_has_the_rows_that_are_left(
    table: str, end: int, rows: int, tmp_path: Path
) -> None:
    family, change = ("full fusion 1.8", ends) if table == PREFILL else ("npu 1.6", token_rows)
    report = judged(made(family, tmp_path, change(end)))
    (site,) = [s.site for s in report.sites if s.site.cos.name == table]
    # As numpy counts ends, which is how ONNX's Slice does with a step of 1.
    assert site.rows == len(range(ROWS)[:end]) == rows
    assert errors(report) == (set() if rows == ROWS else {"RPE009"}), report.text()


def test_a_prefill_table_cut_to_nothing(tmp_path: Path) -> None:
    report = judged(made("full fusion 1.8", tmp_path, ends(0)))
    assert (report.verdict, report.exit_code) == ("unsupported", 3)
    assert "no row at all" in report.text()


# --- heads ----------------------------------------------------------------------------------


def attributes(**values: int) -> Change:
    def change(model: onnx.ModelProto) -> None:
        for op in ("GQO", "AMDGroupQueryAttention"):
            for node in nodes(model, op):
                for kept in [a for a in node.attribute if a.name in values]:
                    node.attribute.remove(kept)
                node.attribute.extend(helper.make_attribute(k, v) for k, v in values.items())

    return change


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"num_heads": 2}, "2 heads of the query"),
        ({"num_heads": 8}, "8 heads of the query"),
        ({"head_size": 32}, "32 and 64 entries of a head"),
        ({"num_heads": 2, "head_size": 128}, "2 heads of the query, 64 and 128 entries of a head"),
        ({"kv_num_heads": 4}, "2 and 4 heads of the key"),
        ({"kv_num_heads": 1}, "1 and 2 heads of the key"),
    ],
)
def test_heads_that_are_not_declared(values: dict[str, int], said: str, tmp_path: Path) -> None:
    """4 heads of 64 entries are, of 2 for the key, and the caches are of those."""
    report = judged(made("hybrid 1.7", tmp_path, attributes(**values)))
    assert (report.verdict, report.exit_code) == ("unsupported", 3)
    (found,) = [f for f in report.findings if f.code == "RPE041"]
    assert found.found == said


@pytest.mark.parametrize("family", FAMILIES)
def test_the_declared_heads_are_right(family: str, tmp_path: Path) -> None:
    assert errors(judged(made(family, tmp_path))) == set()


@pytest.mark.parametrize("op", ["GQO", "AMDGroupQueryAttention", "GroupQueryAttention"])
def test_the_widths_of_microsofts_kernels_are_not_amds(op: str, tmp_path: Path) -> None:
    """12 pairs: the kernels of com.microsoft refuse them, of AMD's nothing says so."""
    declared = Declared({**LLAMA3.config, "rope_scaling": None}, default(12, 500000.0))
    pack = build(
        "hybrid 1.7", tmp_path / "p", declared, tables=declared.right(ROWS),
        shape=Shape(head_size=24), **({} if op == "GQO" else {"op": op, "inputs": 9}),
    )  # fmt: skip
    assert errors(judged(pack)) == set()


# --- parts of a value -----------------------------------------------------------------------


def rewritten(edit: Callable[[NDArray[np.float32]], NDArray[np.float32]]) -> Change:
    """hi, hi, lo, lo of the prefill table, changed."""

    def change(model: onnx.ModelProto) -> None:
        (node,) = [n for n in nodes(model, "Constant") if PREFILL in n.output]
        tensor = node.attribute[0].t
        stored = np.frombuffer(tensor.raw_data, ml_dtypes.bfloat16).reshape(list(tensor.dims))
        made = edit(stored.astype(np.float32))
        tensor.raw_data = made.astype(ml_dtypes.bfloat16).tobytes()

    return change


def swapped(stored: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.roll(stored, stored.shape[-1] // 2, axis=-1)


def in_two_halves(stored: NDArray[np.float32]) -> NDArray[np.float32]:
    """The same sums, of two parts of about one size."""
    hi, _, lo, _ = np.split(stored, 4, axis=-1)
    half = ((hi + lo) / 2).astype(ml_dtypes.bfloat16).astype(np.float32)
    rest = hi + lo - half
    return np.concatenate([half, half, rest, rest], axis=-1)


@pytest.mark.parametrize("edit", [swapped, in_two_halves])
def test_parts_that_are_not_hi_and_lo(
    edit: Callable[[NDArray[np.float32]], NDArray[np.float32]], tmp_path: Path
) -> None:
    right = judged(made("full fusion 1.8", tmp_path / "right", prefill_place="constant"))
    assert errors(right) == set()
    wrong = made("full fusion 1.8", tmp_path, rewritten(edit), prefill_place="constant")
    assert "RPE001" in errors(judged(wrong))


# --- options --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "counts"),
    [
        (("model", "decoder", "session_options", "provider_options", 0, "RyzenAI"), True),
        (("model", "decoder", "session_options", "config_entries"), True),
        (("model", "decoder", "session_options", "provider_options", 1, "cuda"), False),
        (("model", "decoder", "session_options"), True),
        (("model", "vision", "session_options"), False),
        (("search",), False),
        ((), False),
    ],
    ids=str,
)
def test_where_the_option_counts(
    place: tuple[str | int, ...], counts: bool, tmp_path: Path
) -> None:
    """As genai_config.json of real packs has it, and as onnxruntime-genai reads it."""
    local, full = tables(default(32, 1e4), ROWS), GEMMA.right(ROWS)
    pack = build(
        "hybrid 1.7", tmp_path / "p", GEMMA, tables=lambda layer: full if layer == 2 else local
    )
    file = pack.path / "genai_config.json"
    genai = json.loads(file.read_text(encoding="utf-8"))
    genai["model"]["decoder"]["session_options"]["provider_options"].append({"cuda": {}})
    at = genai
    for key in place:
        at = at.setdefault(key, {}) if isinstance(key, str) else at[key]
    at["hybrid_dbg_use_aie_rope"] = "0"
    file.write_text(json.dumps(genai), encoding="utf-8")
    assert errors(judged(pack)) == (set() if counts else {"RPE028"})
