"""The demo model: a Llama of two layers whose config declares `llama3`.

Original length 256 and theta 100000 put the change of schedule among the pairs
that turn within the demo's 512 positions: 12 of 16 frequencies differ from plain
ones, which shows little in the first dozen positions and plainly after a hundred.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

LAYERS = 2
HIDDEN = 128
INTERMEDIATE = 256
HEADS = 4
KV_HEADS = 2
HEAD_DIM = 32
VOCAB = 64
THETA = 100000.0
MAX_POSITIONS = 8192
RMS_NORM_EPS = 1e-6

TOKENS = 512
TOKEN_SEED = 99

CONFIG: Mapping[str, object] = {
    "architectures": ["LlamaForCausalLM"],
    "attention_bias": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "head_dim": HEAD_DIM,
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "max_position_embeddings": MAX_POSITIONS,
    "mlp_bias": False,
    "model_type": "llama",
    "num_attention_heads": HEADS,
    "num_hidden_layers": LAYERS,
    "num_key_value_heads": KV_HEADS,
    "pad_token_id": 0,
    "rms_norm_eps": RMS_NORM_EPS,
    "rope_scaling": {
        "factor": 32.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 256,
        "rope_type": "llama3",
    },
    "rope_theta": THETA,
    "tie_word_embeddings": False,
    "vocab_size": VOCAB,
}
"""config.json, as a checkpoint of this model would carry it."""

GENAI_CONFIG: Mapping[str, object] = {
    "model": {
        "bos_token_id": 1,
        "context_length": MAX_POSITIONS,
        "decoder": {
            "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
            "filename": "model.onnx",
            "head_size": HEAD_DIM,
            "hidden_size": HIDDEN,
            "inputs": {
                "input_ids": "input_ids",
                "attention_mask": "attention_mask",
                "past_key_names": "past_key_values.%d.key",
                "past_value_names": "past_key_values.%d.value",
            },
            "outputs": {
                "logits": "logits",
                "present_key_names": "present.%d.key",
                "present_value_names": "present.%d.value",
            },
            "num_attention_heads": HEADS,
            "num_hidden_layers": LAYERS,
            "num_key_value_heads": KV_HEADS,
        },
        "eos_token_id": 2,
        "pad_token_id": 0,
        "type": "llama",
        "vocab_size": VOCAB,
    },
    "search": {"do_sample": False, "max_length": MAX_POSITIONS, "past_present_share_buffer": False},
}
"""genai_config.json, with the keys that onnxruntime-genai's builder writes for a Llama."""


def tokens() -> NDArray[np.int64]:
    """The demo's text: int64 [512], the same on every machine.

    Raw words of PCG64: numpy keeps the streams of its bit generators stable
    (NEP 19), but not what `Generator` makes of them.
    """
    words = np.random.PCG64(TOKEN_SEED).random_raw(TOKENS)
    return (words % np.uint64(VOCAB)).astype(np.int64)
