"""States of layers without attention, against one run of onnxruntime 1.32 over the whole text and
against sums of numpy.

The states here are sums by LinearAttention; those of short convolutions are in
test_carriers.py, and those of real exporters in test_hybrid_builders.py.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from builders import tiny_pack
from counting import counting_pack
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from ort_version import OPS

from forward.dump import read_dump
from forward.dump_pack import dump_pack
from forward.genai_config import read_decoder
from forward.runner import Runner, open_runner
from forward.steps import Block
from forward.wiring import read_wiring
from packimport.errors import GraphError
from packimport.pack.container import open_container

has_op = pytest.mark.skipif(
    "LinearAttention" not in OPS, reason="this onnxruntime has no LinearAttention"
)
TOKENS = np.random.default_rng(3).integers(0, 64, 60)
SPLITS = ([60], [20, 40, 60], [7, 27, 47, 60], [30, *range(31, 61)])
PAST, PRESENT = "past_key_values.0.recurrent_state", "present.0.recurrent_state"
# What a state adds to a logit, for each unit of the tokens' sum.
WEIGHT = 0.125


def summing(model: onnx.ModelProto) -> None:
    """Each logit gets an eighth of the sum of the tokens so far, in [batch, 1, 1, 1].

    That is S += k·v and o = q·S of the "linear" rule, where q and k are 1 and v is the token.
    """
    graph = model.graph
    shape = ["batch_size", 1, 1, 1]
    graph.input.append(helper.make_tensor_value_info(PAST, TensorProto.FLOAT, shape))
    graph.output.append(helper.make_tensor_value_info(PRESENT, TensorProto.FLOAT, shape))
    for name, value in {
        "axis2": np.array([2]),
        "unit": np.array([1], np.float32),
        "weight": np.array([WEIGHT], np.float32),
    }.items():
        graph.initializer.append(numpy_helper.from_array(value, name))
    for node in graph.node:
        for index, name in enumerate(node.output):
            if name == "logits":
                node.output[index] = "logits_before"
    graph.node.extend(
        helper.make_node(op, inputs, [output], **attributes)
        for op, inputs, output, attributes in (
            ("Cast", ["input_ids"], "numbers", {"to": TensorProto.FLOAT}),
            ("Unsqueeze", ["numbers", "axis2"], "column", {}),
            ("Sub", ["column", "column"], "zeros", {}),
            ("Add", ["zeros", "unit"], "units", {}),
        )
    )
    graph.node.append(
        helper.make_node(
            "LinearAttention", ["units", "units", "column", PAST], ["so_far", PRESENT],
            domain="com.microsoft", q_num_heads=1, kv_num_heads=1, update_rule="linear", scale=1.0,
        )
    )  # fmt: skip
    graph.node.append(helper.make_node("Mul", ["so_far", "weight"], ["weighted"]))
    graph.node.append(helper.make_node("Add", ["logits_before", "weighted"], ["logits"]))


def runner_of(pack: Path) -> Runner:
    container = open_container(pack)
    return open_runner(container, read_decoder(container))


def bare(pack: Path) -> NDArray[Any]:
    """The whole text in one run of onnxruntime."""
    session = onnxruntime.InferenceSession(pack / "model.onnx", providers=["CPUExecutionProvider"])
    feeds: dict[str, Any] = {
        "input_ids": TOKENS[None],
        "attention_mask": np.ones((1, len(TOKENS)), np.int64),
    }
    for port in session.get_inputs():
        if port.name.startswith("past"):
            shape = (1, 1, 1, 1) if port.name == PAST else (1, 2, 0, 16)
            feeds[port.name] = np.zeros(shape, np.float32)
    return session.run(["logits"], feeds)[0][0]


@has_op
@pytest.mark.parametrize("stops", SPLITS)
@pytest.mark.parametrize("share", [True, False])
def test_a_state_is_carried(tmp_path: Path, share: bool, stops: list[int]) -> None:
    pack = tiny_pack(tmp_path / "p", change=summing, inline=True)
    run = runner_of(pack).begin(len(TOKENS), share)
    starts = [0, *stops[:-1]]
    rows = [run.feed(TOKENS[a:b]).copy() for a, b in zip(starts, stops, strict=True)]
    logits = np.concatenate(rows)
    assert np.abs(logits - bare(pack)).max() <= 2e-5
    without = bare(tiny_pack(tmp_path / "without"))
    assert np.abs(logits - without - WEIGHT * np.cumsum(TOKENS)[:, None]).max() <= 1e-3


@has_op
@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("skipped", [[20], [20, 50], [1, 2, 3, 20, 50]])
def test_what_is_skipped_is_remembered(tmp_path: Path, share: bool, skipped: list[int]) -> None:
    pack = tiny_pack(tmp_path / "p", change=summing, inline=True)
    run = runner_of(pack).begin(60, share)
    for start, stop in zip([0, *skipped], skipped, strict=False):
        run.skip(TOKENS[start:stop])
    rows = [run.feed(TOKENS[at : at + 1]).copy() for at in range(skipped[-1], 60)]
    assert np.abs(np.concatenate(rows) - bare(pack)[skipped[-1] :]).max() <= 2e-5


@has_op
def test_a_batch_is_its_prompts(tmp_path: Path) -> None:
    runner = runner_of(tiny_pack(tmp_path / "p", change=summing, inline=True))
    prompts = [TOKENS[:7], TOKENS[7:50], TOKENS[50:51]]
    for prompt, rows in zip(prompts, runner.batch(prompts), strict=True):
        assert np.abs(rows - runner.begin(len(prompt)).feed(prompt)).max() <= 2e-5


@has_op
def test_a_text_is_fed_in_parts(tmp_path: Path) -> None:
    runner = runner_of(tiny_pack(tmp_path / "p", change=summing, inline=True))
    assert (runner.chunk, runner.shareable, runner.one_cache) == (256, True, None)


def test_nodes_that_carry_a_state_over_any_number_of_tokens(tmp_path: Path) -> None:
    def carrying(model: onnx.ModelProto) -> None:
        model.graph.input.extend(
            helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 8, 2])
            for name in ("past.0.conv", "past.1.conv")
        )
        for past in ("past.0.conv", "past.1.conv"):
            model.graph.node.append(
                helper.make_node(
                    "CausalConvWithState", ["x", "w", "", past], [f"y{past}", f"of_{past}"],
                    domain="com.microsoft", ndim=1,
                )
            )  # fmt: skip
        # What reads it elsewhere, too, may do anything with it.
        model.graph.node.append(helper.make_node("Neg", ["past.1.conv"], ["other"]))

    container = open_container(tiny_pack(tmp_path / "p", change=carrying))
    assert read_wiring(container, read_decoder(container)).carried == {
        "past.0.conv": "of_past.0.conv"
    }


@has_op
def test_a_kill_changes_no_byte(tmp_path: Path) -> None:
    container = open_container(tiny_pack(tmp_path / "p", change=summing, inline=True))
    decoder = read_decoder(container)

    def dump(name: str, stop: int | None = None) -> bytes:
        def watch(_: object, blocks: Any) -> Any:
            def some() -> Any:
                given: Block
                for count, given in enumerate(blocks):
                    if count == stop:
                        os.kill(os.getpid(), signal.SIGKILL)
                    yield given

            return some()

        dump_pack(container, decoder, tmp_path / name, TOKENS, decode=20, chunk=8, watch=watch)
        return (tmp_path / name / "logits.npy").read_bytes()

    if not hasattr(os, "fork"):
        pytest.skip("needs fork")
    child = os.fork()
    if not child:
        dump("cut", stop=9)
        os._exit(0)
    assert os.WIFSIGNALED(os.waitpid(child, 0)[1])
    assert dump("cut") == dump("whole")
    assert np.abs(read_dump(tmp_path / "whole").logits[:] - bare(tmp_path / "p")).max() <= 2e-5


def without_present(model: onnx.ModelProto) -> None:
    summing(model)
    del model.graph.output[-1]


def state_of(shape: list[Any], present: list[Any] | None = None) -> Callable[[Any], None]:
    def change(model: onnx.ModelProto) -> None:
        for values, name, dims in (
            (model.graph.input, PAST, shape),
            (model.graph.output, PRESENT, present or shape),
        ):
            values.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, dims))
        op = "Identity" if present is None else "Concat"
        inputs = [PAST] if present is None else [PAST, PAST]
        axis = {} if present is None else {"axis": 1}
        model.graph.node.append(helper.make_node(op, inputs, [PRESENT], **axis))

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(
            without_present,
            rf"{PAST}.*no present; allowed: an output named {PRESENT}",
            marks=has_op,
        ),
        (state_of(["batch", "any", 2]), r"unknown layout.*found float32 \[\?, \?, 2\]"),
        (state_of([4, "batch", 8, 2]), r"unknown layout.*found float32 \[4, \?, 8, 2\]"),
        (state_of(["batch"]), r"unknown layout.*found float32 \[\?\]"),
        (state_of(["batch", 8], ["batch", 16]), r"not of its past's type and size"),
        (state_of(["batch", 8, 2]), r"does not know.*found Identity; allowed: one CausalConvWith"),
    ],
)
def test_what_can_not_be_carried_is_refused(
    tmp_path: Path, change: Callable[[onnx.ModelProto], None], message: str
) -> None:
    with pytest.raises(GraphError, match=f"(?s){message}"):
        runner_of(tiny_pack(tmp_path / "p", change=change, inline=True))


def test_names_of_the_pack(tmp_path: Path) -> None:
    names = {
        "inputs": {"past_conv_names": "past.%d.conv", "past_recurrent_names": "r%d"},
        "outputs": {"present_conv_names": "present.%d.conv", "present_recurrent_names": "s%d"},
    }
    decoder = read_decoder(open_container(counting_pack(tmp_path / "p", decoder=names)))
    found = (decoder.past_conv, decoder.present_conv, decoder.past_recurrent)
    assert found == ("past.%d.conv", "present.%d.conv", "r%d")
    assert decoder.present_recurrent == "s%d"
    assert json.loads((tmp_path / "p" / "genai_config.json").read_text("utf-8"))
