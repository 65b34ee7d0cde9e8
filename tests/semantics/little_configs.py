"""Small configs of each type, and shorthands to read them, for the tests of semantics/."""

from __future__ import annotations

from packimport.pack.documents import Document
from packimport.rope.schedule import Rope
from packimport.semantics.config import Reading, read_reading
from packimport.semantics.genai import EMPTY

FILE = "config.json"

# A block of each type, without its type; heads have 64 entries.
BLOCKS: dict[str, dict[str, object]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 6.0},
    "llama3": {
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 8192},
    "longrope": {
        "short_factor": [1.0] * 32,
        "long_factor": [2.0] * 32,
        "original_max_position_embeddings": 4096,
    },
    "proportional": {"partial_rotary_factor": 0.25, "factor": 2.0},
}


def config(model_type: str = "llama", **keys: object) -> dict[str, object]:
    """A config of two layers with heads of 64 entries."""
    sizes = {
        "model_type": model_type,
        "hidden_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "max_position_embeddings": 32768,
        "rope_theta": 500000.0,
    }
    return {key: value for key, value in {**sizes, **keys}.items() if value is not ...}


def scaled(kind: str, model_type: str = "llama", **keys: object) -> dict[str, object]:
    """A config with a block of that type; `keys` replace those of the block."""
    block = {"rope_type": kind, **BLOCKS[kind], **keys}
    return config(model_type, rope_scaling={k: v for k, v in block.items() if v is not ...})


def reading(value: object) -> Reading:
    """What a bare config says."""
    return read_reading(Document(FILE, value), EMPTY)


def only_rope(value: object) -> Rope:
    """The one Rope that all layers of a config share."""
    (rope,) = set(reading(value).layers)
    assert rope is not None
    return rope
