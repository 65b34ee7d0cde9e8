"""Positions in three axes, against sums of numpy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from counting import counting_pack, expected
from onnx import TensorProto, helper, numpy_helper

from forward.genai_config import read_decoder
from forward.runner import Runner, open_runner
from packimport.errors import GraphError
from packimport.pack.container import open_container

TOKENS = np.random.default_rng(3).integers(0, 8, 9)


def runner_of(pack: Path) -> Runner:
    container = open_container(pack)
    return open_runner(container, read_decoder(container))


@pytest.mark.parametrize("axes", [3, 4])
def test_positions_in_axes(tmp_path: Path, axes: int) -> None:
    """Each axis counts another time, so that each shows in the logits."""
    pack = counting_pack(tmp_path / "p", position_ids=True)
    model = onnx.load(pack / "model.onnx")
    port = next(value for value in model.graph.input if value.name == "position_ids")
    port.CopyFrom(
        helper.make_tensor_value_info("position_ids", TensorProto.INT64, [axes, "batch", "length"])
    )
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            if name == "position_ids":
                node.input[index] = "summed"
    weights = np.array([1, 10, 100, 1000][:axes]).reshape(-1, 1, 1)
    model.graph.initializer.append(numpy_helper.from_array(weights, "weights"))
    model.graph.initializer.append(numpy_helper.from_array(np.array([0]), "first"))
    model.graph.node.insert(
        0, helper.make_node("ReduceSum", ["each", "first"], ["summed"], keepdims=0)
    )
    model.graph.node.insert(0, helper.make_node("Mul", ["position_ids", "weights"], ["each"]))
    onnx.save(model, pack / "model.onnx")
    if axes == 4:
        with pytest.raises(GraphError, match=r"can't feed yet.*\[3, 1 or open, open\]"):
            runner_of(pack)
        return
    tokens = TOKENS
    right = expected(tokens) + 111 * np.arange(9)[:, None]
    runner = runner_of(pack)
    run = runner.begin(9)
    assert np.array_equal(np.concatenate([run.feed(tokens[:5]), run.feed(tokens[5:])]), right)
    run = runner.begin(9)
    assert np.array_equal(np.concatenate([run.feed(tokens[i : i + 1]) for i in range(9)]), right)
    assert np.array_equal(runner.batch([tokens[::-1], tokens])[1], right)
