"""Run by an interpreter with torch and transformers: a tiny seeded model, saved for an exporter.

    python make_amd_model.py SETTINGS OUT

SETTINGS is JSON: `class`, such as Llama, and keys of its config.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
import transformers

# A tokenizer of three words: the builder copies one, whatever it is.
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
SETTINGS = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"}


TINY = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "vocab_size": 512,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}


def main() -> None:
    settings, out = json.loads(sys.argv[1]), Path(sys.argv[2])
    kind = settings.pop("class")
    config = getattr(transformers, f"{kind}Config")(**TINY, **settings)
    torch.manual_seed(0)
    getattr(transformers, f"{kind}ForCausalLM")(config).save_pretrained(out)
    for name, value in (("tokenizer", TOKENIZER), ("tokenizer_config", SETTINGS)):
        (out / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")


main()
