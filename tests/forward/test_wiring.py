"""Which graphs only count their mask, so that zeros may stand behind its ones."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import tiny_pack
from onnx import TensorProto, helper

from forward.genai_config import read_decoder
from forward.runner import open_runner
from forward.wiring import Wiring, read_wiring
from packimport.pack.container import open_container

PACKS = Path(__file__).parent.parent / "packs"
TOKENS = np.random.default_rng(5).integers(0, 64, 40)


def wiring_of(pack: Path) -> Wiring:
    container = open_container(pack)
    return read_wiring(container, read_decoder(container))


def changed(pack: Path, change: Callable[[onnx.GraphProto], None]) -> Path:
    model = onnx.load(pack / "model.onnx", load_external_data=False)
    change(model.graph)
    onnx.save(model, pack / "model.onnx")
    return pack


@pytest.mark.parametrize("name", ["oga-0.18.0-qwen3", "oga-0.11.2-llama3", "oga-0.11.2-gemma3"])
def test_the_builders_graphs_count(name: str) -> None:
    assert wiring_of(PACKS / name).counted


def test_a_branch_by_length_does_not() -> None:
    assert not wiring_of(PACKS / "oga-0.18.0-longrope-if").counted


def to_output(graph: onnx.GraphProto) -> None:
    graph.output.append(helper.make_tensor_value_info("length", TensorProto.INT64, None))


def to_another_op(graph: onnx.GraphProto) -> None:
    graph.node.append(helper.make_node("Neg", ["attention_mask"], ["negative"]))


def to_another_input(graph: onnx.GraphProto) -> None:
    """The past's length from the mask's length, not from its sum."""
    graph.node.insert(
        [node.output[0] for node in graph.node].index("total_length") + 1,
        helper.make_node("Sub", ["total_length", "one32"], ["last_by_length"]),
    )
    graph.initializer.append(helper.make_tensor("one32", TensorProto.INT32, [1], [1]))
    for node in graph.node:
        if node.op_type == "GroupQueryAttention":
            node.input[5] = "last_by_length"


@pytest.mark.parametrize("change", [to_output, to_another_op, to_another_input])
def test_what_else_looks_at_the_mask(
    tmp_path: Path, change: Callable[[onnx.GraphProto], None]
) -> None:
    pack = tiny_pack(tmp_path / "pack", form="gqa")
    assert wiring_of(pack).counted
    assert not wiring_of(changed(pack, change)).counted


def test_single_tokens_give_the_same_bits_with_a_mask_of_one_length(tmp_path: Path) -> None:
    container = open_container(tiny_pack(tmp_path / "pack", form="gqa"))
    runner = open_runner(container, read_decoder(container))
    assert runner.wiring.counted
    steady = runner.begin(len(TOKENS), share=True)
    # A run that knows no more of its length than the next token has a mask that grows.
    growing = runner.begin(len(TOKENS), share=False)
    for start, stop in ((0, 8), (8, 9), (9, 10), (10, 20), *((i, i + 1) for i in range(20, 40))):
        one, other = (run.feed(TOKENS[start:stop]).copy() for run in (steady, growing))
        assert np.array_equal(one, other), (start, stop)
