"""The runner's own check: packs pass it, and one whose decode differs does not."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import tiny_pack
from counting import counting_pack
from onnx import TensorProto, helper, numpy_helper

from forward.genai_config import read_decoder
from forward.runner import open_runner
from forward.self_check import Check, sample_tokens, self_check
from packimport import patch
from packimport.errors import DumpError
from packimport.pack.container import open_container

PACKS = Path(__file__).parent.parent / "packs"
# oga-0.11.2-smollm3 does not load before it is mended, optimum-0.1.0-llama3 has no
# genai_config.json: see below.
LOADING = [
    "amd-oga-0.7.0.1-llama3-int4-dml",
    "oga-0.11.2-gemma3",
    "oga-0.11.2-llama3",
    "oga-0.18.0-linear",
    "oga-0.18.0-llama3-int4",
    "oga-0.18.0-longrope-dml",
    "oga-0.18.0-longrope-if",
    "oga-0.18.0-qwen3",
]


def checked(pack: Path, count: int = 96) -> dict[str, Check]:
    container = open_container(pack)
    decoder = read_decoder(container)
    runner = open_runner(container, decoder)
    checks = self_check(runner, decoder, sample_tokens(decoder, count))
    return {check.name: check for check in checks}


@pytest.mark.parametrize("name", LOADING)
def test_real_packs(name: str) -> None:
    checks = checked(PACKS / name)
    assert len(checks) == 4
    for check in checks.values():
        assert check.difference is not None, check.text()
        assert check.passed, check.text()


def test_a_pack_that_loads_when_it_is_mended(tmp_path: Path) -> None:
    patch(PACKS / "oga-0.11.2-smollm3", tmp_path / "mended")
    checks = checked(tmp_path / "mended")
    assert all(check.passed and check.difference is not None for check in checks.values())


def test_a_graph_of_optimum(tmp_path: Path) -> None:
    """Masks and rotation of plain ops, and position_ids; what names its inputs is another's."""
    pack = shutil.copytree(PACKS / "optimum-0.1.0-llama3", tmp_path / "p")
    shutil.copy(PACKS / "oga-0.11.2-llama3" / "genai_config.json", pack)
    checks = checked(pack)
    not_run = [name for name, check in checks.items() if check.difference is None]
    assert not_run == ["cache shared = growing"]
    assert all(check.passed for check in checks.values())


def test_few_bits_loosen_the_checks_of_other_steps_alone() -> None:
    bounds = [check.bound for check in checked(PACKS / "oga-0.18.0-llama3-int4").values()]
    assert bounds == [0.4, 0.4, 1e-4, 1e-4]
    assert {check.bound for check in checked(PACKS / "oga-0.11.2-llama3").values()} == {1e-4}


@pytest.mark.parametrize("form", ["gqa", "rotary_embedding"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_built_packs(tmp_path: Path, form: str, dtype: str) -> None:
    checks = checked(tiny_pack(tmp_path / "p", form=form, dtype=dtype), 60)
    assert all(check.passed and check.difference is not None for check in checks.values())


@pytest.mark.parametrize(
    ("options", "not_run"),
    [
        ({}, {"cache shared = growing": "one buffer"}),
        ({"last": "static"}, {"batch = single": "last position", "cache shared = growing": ""}),
        (
            {"past": False},
            {
                "decode = prefill": "takes no past",
                "chunked = whole": "takes no past",
                "cache shared = growing": "takes no past",
            },
        ),
    ],
)
def test_what_a_graph_can_not_do_is_said(
    tmp_path: Path, options: dict[str, object], not_run: dict[str, str]
) -> None:
    checks = checked(counting_pack(tmp_path / "p", **options), 60)  # type: ignore[arg-type]
    assert {name for name, check in checks.items() if check.difference is None} == set(not_run)
    for name, reason in not_run.items():
        assert reason in (checks[name].why_not or "")
        assert checks[name].passed
    # These graphs add up the mask, so that a padded batch is not its prompts there.
    del checks["batch = single"]
    assert all(check.passed for check in checks.values())


def rotate_from_zero(model: onnx.ModelProto) -> None:
    """A fault of real packs: positions that never advance, so that decode is wrong."""
    graph = model.graph
    graph.initializer.append(numpy_helper.from_array(np.array(0), "nought"))
    for node in graph.node:
        if node.op_type == "RotaryEmbedding":
            node.input[1] = "stuck"
    nodes = [
        helper.make_node("Mul", ["position_ids", "nought"], ["zeros"]),
        helper.make_node("CumSum", ["ones_like", "axis1"], ["counted"]),
        helper.make_node("Add", ["zeros", "unit"], ["ones_like"]),
        helper.make_node("Sub", ["counted", "unit"], ["stuck"]),
    ]
    for name, value in (("axis1", 1), ("unit", 1)):
        graph.initializer.append(numpy_helper.from_array(np.array(value), name))
    others = list(graph.node)
    del graph.node[:]
    graph.node.extend([nodes[0], nodes[2], nodes[1], nodes[3], *others])


def test_positions_that_never_advance_are_found(tmp_path: Path) -> None:
    pack = tiny_pack(tmp_path / "p", form="rotary_embedding", change=rotate_from_zero)
    checks = checked(pack, 60)
    assert not checks["decode = prefill"].passed
    assert not checks["chunked = whole"].passed
    assert "DIFFERENT" in checks["decode = prefill"].text()
    assert checks["batch = single"].passed


def other_table_in_decode(rows: slice, by: int) -> Callable[[onnx.ModelProto], None]:
    """A call of one token takes the table's `rows` from `by` rows before them."""

    def branch(name: str, suffix: str) -> onnx.GraphProto:
        nodes, outputs = [], []
        for table in ("cos", "sin"):
            made = f"{table}_{name}"
            nodes.append(helper.make_node("Identity", [table + suffix], [made]))
            outputs.append(helper.make_tensor_value_info(made, TensorProto.FLOAT, None))
        return helper.make_graph(nodes, name, [], outputs)

    def change(model: onnx.ModelProto) -> None:
        graph = model.graph
        stored = {tensor.name: numpy_helper.to_array(tensor) for tensor in graph.initializer}
        for name in ("cos", "sin"):
            wrong = stored[name].copy()
            wrong[rows] = stored[name][rows.start - by : rows.stop - by]
            graph.initializer.append(numpy_helper.from_array(wrong, f"{name}_token"))
        graph.initializer.append(helper.make_tensor("decode_1", TensorProto.INT64, [1], [1]))
        for node in graph.node:
            if node.op_type == "GroupQueryAttention":
                node.input[7], node.input[8] = "cos_used", "sin_used"
        nodes = [
            helper.make_node("Shape", ["input_ids"], ["ids_shape"]),
            helper.make_node("Gather", ["ids_shape", "decode_1"], ["ids_length"]),
            helper.make_node("Equal", ["ids_length", "decode_1"], ["single"]),
            helper.make_node(
                "If",
                ["single"],
                ["cos_used", "sin_used"],
                then_branch=branch("then", "_token"),
                else_branch=branch("else", ""),
            ),
        ]
        others = list(graph.node)
        del graph.node[:]
        graph.node.extend([*nodes, *others])

    return change


@pytest.mark.parametrize(
    ("rows", "by"),
    [(slice(49, 256), 49), (slice(49, 256), 1), (slice(95, 96), 49), (slice(95, 96), 1)],
)
def test_a_decode_that_is_wrong_behind_the_middle_is_found(
    tmp_path: Path, rows: slice, by: int
) -> None:
    """From position 49 on, and at the last one alone: the first half and most others are right."""
    change = other_table_in_decode(rows, by)
    checks = checked(tiny_pack(tmp_path / "p", rows=256, change=change))
    found = checks.pop("decode = prefill")
    assert not found.passed
    assert found.position is not None
    assert found.position in range(rows.start, rows.stop)
    assert f"at position {found.position}" in found.text()
    # Both forms of the cache are decoded, and both wrongly.
    assert all(check.passed for check in checks.values())


def test_the_same_table_in_decode_passes(tmp_path: Path) -> None:
    change = other_table_in_decode(slice(49, 256), 0)
    checks = checked(tiny_pack(tmp_path / "p", rows=256, change=change))
    assert all(check.passed and check.difference is not None for check in checks.values())


@pytest.mark.parametrize("count", [2, 3, 14])
def test_few_tokens(tmp_path: Path, count: int) -> None:
    checks = checked(tiny_pack(tmp_path / "p"), count)
    assert all(check.passed and check.difference is not None for check in checks.values())


def test_one_token_is_too_few(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="two tokens or more"):
        checked(tiny_pack(tmp_path / "p"), 1)
