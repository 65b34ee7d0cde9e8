"""Caches that keep a window alone (GroupQueryAttention's sliding_window_cache), as gpt-oss has."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import tiny_pack
from onnx import helper
from onnxruntime.capi import onnxruntime_pybind11_state

from forward import cli
from forward.genai_config import read_decoder
from forward.runner import open_runner, run_logits
from packimport.errors import GraphError
from packimport.pack.container import open_container

pytestmark = pytest.mark.skipif(
    not any(
        schema.name == "GroupQueryAttention" and "sliding_window_cache" in schema.attributes
        for schema in onnxruntime_pybind11_state.get_all_operator_schema()
    ),
    reason="this onnxruntime has no sliding_window_cache",
)

TOKENS = np.random.default_rng(1).integers(0, 64, 24)
WINDOW = 8


def windowed(cache: bool) -> object:
    """Attention to the last WINDOW positions; cache: which alone are kept."""

    def change(model: onnx.ModelProto) -> None:
        for node in model.graph.node:
            if node.op_type == "GroupQueryAttention":
                settings = {"local_window_size": WINDOW}
                if cache:
                    settings["sliding_window_cache"] = 1
                node.attribute.extend(helper.make_attribute(k, v) for k, v in settings.items())

    return change


def test_the_logits_are_those_of_a_whole_cache(tmp_path: Path) -> None:
    whole = run_logits(tiny_pack(tmp_path / "whole", change=windowed(False)), TOKENS, decode=4)
    part = run_logits(tiny_pack(tmp_path / "part", change=windowed(True)), TOKENS, decode=4)
    assert np.allclose(part.logits[:], whole.logits[:], atol=1e-5)


def test_the_self_check_says_what_can_not_be_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pack = tiny_pack(tmp_path / "p", change=windowed(True))
    with pytest.raises(SystemExit) as caught:
        cli.main([str(pack), "--self-check"])
    out, err = capsys.readouterr()
    assert (caught.value.code, err) == (0, "")
    assert "batch = single            not run: a layer keeps a window of the past" in out
    assert "cache shared = growing    not run: a layer keeps a window of the past" in out
    assert "Non-zero status" not in out


def test_a_window_is_one_buffer_whatever_the_pack_says(tmp_path: Path) -> None:
    container = open_container(tiny_pack(tmp_path / "p", change=windowed(True)))
    runner = open_runner(container, read_decoder(container))
    run = runner.begin(len(TOKENS), share=False)
    assert len(run.feed(TOKENS)) == len(TOKENS)
    with pytest.raises(GraphError, match="window"):
        runner.begin()
    with pytest.raises(GraphError, match=r"a window of the past.*Run the prompts one by one"):
        runner.batch([TOKENS, TOKENS[:3]])
