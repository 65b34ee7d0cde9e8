"""Every form of the cache gives the logits of one run over the whole text by onnxruntime 1.32."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from builders import tiny_pack
from numpy.typing import NDArray
from onnx import TensorProto, helper
from ort_version import ORT

from forward.genai_config import read_decoder
from forward.runner import Runner, open_runner
from packimport.errors import GraphError
from packimport.pack.container import open_container

TOKENS = np.random.default_rng(3).integers(0, 64, 60)
SPLITS = ([60], [20, 40, 60], [30, *range(31, 61)])


def runner_of(pack: Path) -> Runner:
    container = open_container(pack)
    return open_runner(container, read_decoder(container))


def fed(pack: Path, stops: list[int], share: bool | None) -> NDArray[Any]:
    run = runner_of(pack).begin(len(TOKENS), share)
    starts = [0, *stops[:-1]]
    # Copies: a shared cache writes the logits of the next step over these.
    return np.concatenate(
        [run.feed(TOKENS[a:b]).copy() for a, b in zip(starts, stops, strict=True)]
    )


def bare(pack: Path, length: int = 0, kind: Any = np.float32) -> NDArray[Any]:
    """The whole text in one run of onnxruntime; length: of a past that must be there."""
    session = onnxruntime.InferenceSession(pack / "model.onnx", providers=["CPUExecutionProvider"])
    feeds: dict[str, Any] = {
        "input_ids": TOKENS[None],
        "attention_mask": np.ones((1, len(TOKENS)), np.int64),
    }
    for port in session.get_inputs():
        if port.name.startswith("past"):
            feeds[port.name] = np.zeros((1, 2, length, 16), kind)
    return session.run(["logits"], feeds)[0][0]


def fix_length(length: int) -> Callable[[onnx.ModelProto], None]:
    """Past and present of a length that the graph states."""

    def change(model: onnx.ModelProto) -> None:
        for value in (*model.graph.input, *model.graph.output):
            if "past" in value.name or "present" in value.name:
                value.type.tensor_type.shape.dim[2].dim_value = length

    return change


def quantise(model: onnx.ModelProto) -> None:
    """Keys and values of int8, with one scale each."""
    model.graph.initializer.append(helper.make_tensor("kv_scale", TensorProto.FLOAT, [1], [0.02]))
    for value in (*model.graph.input, *model.graph.output):
        if "past" in value.name or "present" in value.name:
            value.type.tensor_type.elem_type = TensorProto.INT8
    for node in model.graph.node:
        if node.op_type == "GroupQueryAttention":
            node.input.extend(["", "", "", "kv_scale", "kv_scale"])
            for name in ("k_quant_type", "v_quant_type"):
                node.attribute.append(helper.make_attribute(name, "PER_TENSOR"))
            node.attribute.append(helper.make_attribute("kv_cache_bit_width", 8))


def window(size: int) -> Callable[[onnx.ModelProto], None]:
    """Attention to the last `size` positions alone."""

    def change(model: onnx.ModelProto) -> None:
        for node in model.graph.node:
            if node.op_type == "GroupQueryAttention":
                node.attribute.append(helper.make_attribute("local_window_size", size))

    return change


@pytest.mark.parametrize("stops", SPLITS)
@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_shared_and_growing(tmp_path: Path, dtype: str, share: bool, stops: list[int]) -> None:
    pack = tiny_pack(tmp_path / "p", dtype=dtype)
    assert runner_of(pack).shareable
    expected = bare(pack, kind=np.dtype(dtype))
    bound = 1e-5 if dtype == "float32" else 0.02
    assert np.abs(fed(pack, stops, share).astype(float) - expected).max() <= bound


@pytest.mark.parametrize("stops", SPLITS)
@pytest.mark.parametrize("share", [True, False])
def test_sliding_window(tmp_path: Path, share: bool, stops: list[int]) -> None:
    pack = tiny_pack(tmp_path / "p", change=window(8))
    expected = bare(pack)
    assert np.abs(expected - bare(tiny_pack(tmp_path / "whole"))).max() > 0.1
    assert np.abs(fed(pack, stops, share) - expected).max() <= 1e-5


@pytest.mark.parametrize("stops", SPLITS)
def test_a_cache_of_a_fixed_length(tmp_path: Path, stops: list[int]) -> None:
    pack = tiny_pack(tmp_path / "p", change=fix_length(64))
    plain = tiny_pack(tmp_path / "plain")
    assert np.abs(fed(pack, stops, None) - bare(plain)).max() <= 1e-5


def test_a_fixed_cache_that_is_too_short_is_named(tmp_path: Path) -> None:
    pack = tiny_pack(tmp_path / "p", change=fix_length(48))
    with pytest.raises(GraphError, match=r"past_key_values.0.key.*found 60; allowed: 48 or fewer"):
        fed(pack, [60], None)


@pytest.mark.skipif(ORT < (1, 27), reason="onnxruntime before 1.27 runs no such cache on the CPU")
@pytest.mark.parametrize("stops", SPLITS)
@pytest.mark.parametrize("share", [True, False])
def test_int8(tmp_path: Path, share: bool, stops: list[int]) -> None:
    """Entries of 127 steps of 0.02, so that each is off by up to 0.01 of about 1."""
    pack = tiny_pack(tmp_path / "p", change=quantise)
    runner = runner_of(pack)
    assert (runner.shareable, runner.quantised) == (True, True)
    logits = fed(pack, stops, share)
    exact = bare(tiny_pack(tmp_path / "exact"))
    assert np.abs(logits - bare(pack, kind=np.int8)).max() <= 0.15
    assert np.sqrt(((logits - exact) ** 2).mean()) <= 0.1 * exact.std()


def test_a_graph_that_reads_its_past_elsewhere_too_does_not_share(tmp_path: Path) -> None:
    def read_twice(model: onnx.ModelProto) -> None:
        model.graph.node.append(
            helper.make_node("Shape", ["past_key_values.0.key"], ["length_of_past"])
        )

    pack = tiny_pack(tmp_path / "p", change=read_twice)
    assert not runner_of(pack).shareable
    assert np.abs(fed(pack, [30, 60], True) - bare(pack)).max() <= 1e-5


@pytest.mark.parametrize("share", [True, False])
def test_what_is_skipped_is_remembered(tmp_path: Path, share: bool) -> None:
    pack = tiny_pack(tmp_path / "p")
    run = runner_of(pack).begin(60, share)
    run.skip(TOKENS[:20])
    run.skip(TOKENS[20:50])
    assert np.array_equal(run.feed(TOKENS[50:]), fed(pack, [20, 50, 60], share)[50:])


@pytest.mark.parametrize("form", ["gqa", "rotary_embedding"])
def test_a_batch_is_its_prompts(tmp_path: Path, form: str) -> None:
    runner = runner_of(tiny_pack(tmp_path / "p", form=form))
    prompts = [TOKENS[:7], TOKENS[7:50], TOKENS[50:51]]
    for prompt, rows in zip(prompts, runner.batch(prompts), strict=True):
        assert rows.shape == (len(prompt), 64)
        assert np.abs(rows - runner.begin(len(prompt)).feed(prompt)).max() <= 1e-5
