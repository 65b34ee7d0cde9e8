"""Forms of onnxruntime-genai 0.18.0's builder, run here and by onnxruntime-genai itself.

A tiny random Llama and Mistral: a cache of int8 and of 4 bits, a window of 32 positions, weights
of 8 bits, and a graph that returns the last position's logits alone.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from oracle.genai_logits import genai_steps
from tokenizers import Tokenizer, models

from forward.genai_config import read_decoder
from forward.runner import open_runner, run_logits
from forward.self_check import sample_tokens, self_check
from packimport.pack.container import open_container

pytestmark = pytest.mark.oracle

PREFILL, DECODE = 140, 20
TOKENS = np.random.default_rng(2).integers(3, 512, PREFILL + DECODE)
TINY = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "eos_token_id": 2,
}
SCALES = {"k_scales": 0.05, "v_scales": 0.05}
Made = tuple[str, Path]
# Form ─▶ the model, the precision, and the builder's extra options.
FORMS: dict[str, tuple[str, str, list[str]]] = {
    "int8 cache": ("Llama", "fp32", ["kv_cache_quant_scheme=int8_per_tensor"]),
    "int8 cache, by channel": ("Llama", "fp32", ["kv_cache_quant_scheme=int8_per_channel"]),
    "4-bit cache": ("Llama", "int4", ["kv_cache_quant_scheme=int4_per_channel"]),
    "window": ("Mistral", "fp32", ["windowed_kv_cache=false"]),
    "8-bit weights": ("Llama", "int8", []),
    "last row": ("Llama", "fp32", ["prune_lm_head=true"]),
}


def build(out: Path, kind: str, precision: str, options: list[str]) -> Path:
    transformers, torch = pytest.importorskip("transformers"), pytest.importorskip("torch")
    pytest.importorskip("onnxruntime_genai")
    window = {"sliding_window": 32} if kind == "Mistral" else {}
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(**TINY, **window)
    model = out / "model"
    getattr(transformers, f"{kind}ForCausalLM")(config).save_pretrained(model)
    vocabulary = models.WordLevel({"<unk>": 0, "<s>": 1, "</s>": 2}, "<unk>")
    Tokenizer(vocabulary).save(str(model / "tokenizer.json"))
    tokenizer = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"}
    (model / "tokenizer_config.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    if any("quant_scheme" in option for option in options):
        scales = {key: [scale_of(options[0], scale)] * 2 for key, scale in SCALES.items()}
        (out / "scales.json").write_text(json.dumps({"scales": scales}), encoding="utf-8")
        options = [*options, f"kv_cache_scale_file={out / 'scales.json'}"]
    words = ["-m", str(model), "-o", str(out / "pack"), "-p", precision, "-e", "cpu"]
    words += ["-c", str(out / "cache"), *(["--extra_options", *options] if options else [])]
    builder = [sys.executable, "-m", "onnxruntime_genai.models.builder", *words]
    done = subprocess.run(builder, capture_output=True, encoding="utf-8", check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return out / "pack"


def scale_of(option: str, scale: float) -> Any:
    """One scale, or one for each of 2 heads of 32 entries; 4 bits have 16 times fewer steps."""
    wide = scale * (16 if "int4" in option else 1)
    return [wide] * 64 if "channel" in option else wide


@pytest.fixture(scope="module", params=FORMS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A form and its pack."""
    return request.param, build(tmp_path_factory.mktemp("form"), *FORMS[request.param])


def test_logits_are_genais(made: Made) -> None:
    """Measured: equal but for the last row alone, which is fed token by token: 3.6e-5."""
    _, pack = made
    # Some forms return the last row of the prefill alone.
    expected = np.stack([step[-1] for step in genai_steps(pack, TOKENS, PREFILL)])
    assert np.abs(np.diff(expected, axis=0)).max() > 1
    for chunk in (PREFILL, 32):
        logits = run_logits(pack, TOKENS, decode=DECODE, chunk=chunk).logits[:]
        assert logits.shape == (PREFILL + DECODE, 512)
        assert np.abs(logits[PREFILL - 1 :] - expected).max() <= 1e-4


def test_self_check(made: Made) -> None:
    form, pack = made
    container = open_container(pack)
    decoder = read_decoder(container)
    runner = open_runner(container, decoder)
    checks = self_check(runner, decoder, sample_tokens(decoder, 96))
    not_run = [check.name for check in checks if check.difference is None]
    assert not_run == (["batch = single"] if form == "last row" else [])
    assert all(check.passed for check in checks), [check.text() for check in checks]
    assert runner.quantised == ("cache" in form or "bit" in form)
