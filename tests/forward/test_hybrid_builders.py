"""Hybrid packs of onnxruntime-genai 0.18.0's builder, run here, by onnxruntime-genai itself, and
as the model by transformers 5.24.

A tiny random LFM2 (short convolutions) and Qwen 3.5 (short convolutions, linear attention, and
positions in three axes), each with two layers of attention among four.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import test_resume
from numpy.typing import NDArray
from oracle.genai_logits import genai_logits
from tokenizers import Tokenizer, models

from forward import cli
from forward.genai_config import read_decoder
from forward.runner import open_runner, run_logits
from forward.self_check import sample_tokens, self_check
from packimport.pack.container import open_container

pytestmark = pytest.mark.oracle

PREFILL, DECODE = 300, 20
TOKENS = np.random.default_rng(2).integers(3, 512, PREFILL + DECODE)
TINY: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "eos_token_id": 2,
}
LFM2 = {
    **TINY,
    "layer_types": ["conv", "full_attention"] * 2,
    "block_auto_adjust_ff_dim": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}
QWEN = {
    **TINY,
    "head_dim": 32,
    "layer_types": ["linear_attention", "full_attention"] * 2,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 1e6,
        "partial_rotary_factor": 0.25,
        "mrope_section": [2, 1, 1],
        "mrope_interleaved": True,
    },
}
VISION = {"depth": 1, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2}
# Family ─▶ its config and model in transformers, and the keys of the config.
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "LFM2": ("Lfm2Config", "Lfm2ForCausalLM", LFM2),
    "Qwen 3.5": (
        "Qwen3_5Config",
        "Qwen3_5ForConditionalGeneration",
        {"text_config": QWEN, "vision_config": {**VISION, "out_hidden_size": 64}},
    ),
}


def save_model(folder: Path, family: str) -> None:
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    config, model, keys = FAMILIES[family]
    torch.manual_seed(0)
    getattr(transformers, model)(getattr(transformers, config)(**keys)).save_pretrained(folder)
    vocabulary = models.WordLevel({"<unk>": 0, "<s>": 1, "</s>": 2}, "<unk>")
    Tokenizer(vocabulary).save(str(folder / "tokenizer.json"))
    tokenizer = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer), encoding="utf-8")


@pytest.fixture(scope="module", params=FAMILIES)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `model`, as transformers saves it, and `pack`."""
    pytest.importorskip("onnxruntime_genai")
    out = tmp_path_factory.mktemp("hybrid")
    save_model(out / "model", request.param)
    words = ["-m", str(out / "model"), "-o", str(out / "pack"), "-p", "fp32", "-e", "cpu"]
    builder = [sys.executable, "-m", "onnxruntime_genai.models.builder", *words]
    done = subprocess.run(
        [*builder, "-c", str(out / "cache")], capture_output=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return out


def transformers_logits(model: Path, dtype: Any) -> NDArray[np.float64]:
    """Of every position, computed at once in a dtype of torch."""
    import torch
    import transformers

    kind = json.loads((model / "config.json").read_text(encoding="utf-8"))["architectures"][0]
    loaded = getattr(transformers, kind).from_pretrained(model, dtype=dtype).eval()
    with torch.no_grad():
        logits: NDArray[np.float64] = loaded(torch.tensor(TOKENS)[None]).logits[0].double().numpy()
    return logits


def test_logits_are_genais(made: Path) -> None:
    """Measured: equal, but for a prefill token by token."""
    expected = genai_logits(made / "pack", TOKENS, PREFILL)
    assert expected.shape == (PREFILL + DECODE, 512)
    assert np.abs(np.diff(expected, axis=0)).max() > 1
    for chunk in (None, PREFILL, 37, 1):
        logits = run_logits(made / "pack", TOKENS, decode=DECODE, chunk=chunk).logits[:]
        assert np.abs(logits - expected).max() <= 1e-4


def test_logits_are_those_of_transformers(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As near to the model in float64 as transformers' own float32 is, whose sums have an order
    of their own. Measured: 1.3e-5 and 1.9e-4; transformers 1.4e-5 and 2.8e-4.

    The builder leaves the 1e-6 out of Qwen's norm of queries and keys; so does this.
    """
    import torch
    from transformers.models.qwen3_5 import modeling_qwen3_5

    def norm(values: Any, **_: Any) -> Any:
        return values / torch.linalg.norm(values, dim=-1, keepdim=True)

    monkeypatch.setattr(modeling_qwen3_5, "l2norm", norm)
    exact = transformers_logits(made / "model", torch.float64)
    floor = np.abs(transformers_logits(made / "model", torch.float32) - exact).max()
    logits = run_logits(made / "pack", TOKENS, decode=DECODE).logits[:]
    assert np.abs(exact).max() > 1
    assert 0 < floor <= 1e-3
    assert np.abs(logits - exact).max() <= 2 * floor


def test_every_way_to_feed_is_the_same(made: Path) -> None:
    container = open_container(made / "pack")
    decoder = read_decoder(container)
    runner = open_runner(container, decoder)
    assert (runner.chunk, runner.shareable) == (256, True)
    checks = self_check(runner, decoder, sample_tokens(decoder, 96))
    assert [check.text() for check in checks if check.difference is None] == []
    assert all(check.passed for check in checks), [check.text() for check in checks]


@test_resume.unix
def test_a_kill_changes_no_byte(made: Path, tmp_path: Path) -> None:
    test_resume.dump(made / "pack", tmp_path / "whole")
    for at in (3, 6):  # in the prefill, and in the decode behind what was kept
        test_resume.killed(made / "pack", tmp_path / "killed", at)
    starts = test_resume.dump(made / "pack", tmp_path / "killed")
    assert 0 < len(starts) < test_resume.STEPS
    assert test_resume.contents(tmp_path / "killed") == test_resume.contents(tmp_path / "whole")


def test_the_tables_are_probed(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main([str(made / "pack"), "--probe", "--config", str(made / "model")])
    out, _ = capsys.readouterr()
    assert (caught.value.code, "layers 1, 3" in out) == (0, True)
