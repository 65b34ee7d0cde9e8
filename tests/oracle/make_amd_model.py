"""Run by an interpreter with torch and transformers: a tiny seeded Llama with the RoPE of
Llama-3.2-1B, saved for an exporter.

    python make_amd_model.py OUT
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


def main() -> None:
    out = Path(sys.argv[1])
    config = transformers.LlamaConfig(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=64,
        vocab_size=512,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        tie_word_embeddings=False,
        # meta-llama/Llama-3.2-1B has these.
        max_position_embeddings=131072,
        rope_theta=500000.0,
        rope_scaling={
            "rope_type": "llama3",
            "factor": 32.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    )
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(out)
    for name, value in (("tokenizer", TOKENIZER), ("tokenizer_config", SETTINGS)):
        (out / f"{name}.json").write_text(json.dumps(value), encoding="utf-8")


main()
