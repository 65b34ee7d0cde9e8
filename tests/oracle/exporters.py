"""Packs that onnxruntime-genai's builder makes on the spot, from tiny seeded models.

A builder runs in a process of its own, offline, so that releases beside other
versions of transformers can be used: `--python` of that environment.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SAVE = """
import sys, json, torch, transformers
settings = json.loads(sys.argv[1])
name = settings.pop("class")
config = getattr(transformers, f"{name}Config")(**settings)
torch.manual_seed(0)
model = getattr(transformers, f"{name}ForCausalLM")(config)
model.save_pretrained(sys.argv[2])
"""
TINY = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
# A byte-level tokenizer without merges: the builder copies a tokenizer, whatever it is.
TOKENIZER = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": None,
    "post_processor": None,
    "decoder": None,
    "model": {"type": "WordLevel", "vocab": {"<unk>": 0, "a": 1, "b": 2}, "unk_token": "<unk>"},
}


def old_python() -> str | None:
    """The interpreter beside transformers 4.57 and builder 0.11.2, if CI made one."""
    return os.environ.get("PACKIMPORT_OLD_BUILDER")


def save_model(python: str, folder: Path, **settings: object) -> Path:
    """A tiny seeded model with its config.json, as transformers of `python` saves it."""
    folder.mkdir(parents=True)
    run(python, "-c", SAVE, json.dumps({**TINY, **settings}), str(folder))
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"}),
        encoding="utf-8",
    )
    return folder


def build(python: str, model: Path, out: Path, *, precision: str = "fp32") -> Path:
    """The pack that the builder of `python` makes of a saved model, for the CPU."""
    module = "onnxruntime_genai.models.builder"
    arguments = ["-m", module, "-m", str(model), "-o", str(out), "-p", precision, "-e", "cpu"]
    run(python, *arguments, "-c", str(out.parent / "cache"))
    return out


def run(python: str, *arguments: str) -> None:
    done = subprocess.run(
        [python, *arguments],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONWARNINGS": "ignore"},
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


CURRENT = sys.executable
