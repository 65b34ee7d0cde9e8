"""Ropes for the rows of rope_reference.json: transformers 5.24.0's own frequencies."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from packimport.rope.schedule import Rope

DATA = Path(__file__).parent.parent / "data"

# rope_parameters keys that are not fields of a Rope: spellings of the type, and
# what bears on other things than frequencies.
_OTHER = {
    "type",
    "rope_type",
    "rope_theta",
    "partial_rotary_factor",
    "mrope_interleaved",
    "llama_4_scaling_beta",
    "mrope_section",
}
# Read off the configs: the head where transformers' config has none, and the
# dimensions of Gemma 4's two kinds of layer.
_HEADS = {
    "mistralai/Mixtral-8x22B-v0.1": 128,
    "microsoft/Phi-3.5-mini-instruct": 96,
    "stabilityai/stablelm-3b-4e1t": 80,
    "togethercomputer/RedPajama-INCITE-Base-3B-v1": 80,
    "CohereForAI/aya-23-8B": 128,
    "allenai/OLMo-2-1124-7B": 128,
    "bigcode/starcoder2-7b": 128,
    "Qwen/Qwen2.5-3B-Instruct": 128,
    "allenai/Olmo-3.1-32B-Instruct": 128,
    "Qwen/Qwen2.5-VL-7B-Instruct": 128,
    "LiquidAI/LFM2.5-VL-1.6B (text_config)": 64,
    "microsoft/phi-1": 64,
    "ibm-granite/granite-3.3-8b (vocab 49159)": 128,
}
_GEMMA4_HEADS = {"full_attention": 512, "sliding_attention": 256}


@dataclass(frozen=True)
class Row:
    """One table of the reference: its Rope and what transformers computes for it."""

    name: str
    rope: Rope
    inv_freq: NDArray[np.float32]
    attention_factor: float


def rows() -> Iterator[Row]:
    """Every table of rope_reference.json."""
    text = (DATA / "rope_reference.json").read_text(encoding="utf-8")
    configs = {
        row["model"]: row["config"]
        for row in json.loads((DATA / "rope_configs.json").read_text(encoding="utf-8"))
    }
    for result in json.loads(text)["results"]:
        config = configs[result["model"]]
        config = config.get("text_config", config)
        for layers, table in result.get("tables", {}).items():
            block = result["rope_parameters"]
            block = block if layers == "all" else block[layers]
            head = _HEADS.get(result["model"], result["head_dim"])
            head = _GEMMA4_HEADS[layers] if head == "heterogeneous" else head
            yield Row(
                name=f"{result['model']} {layers}",
                rope=_rope(block, head, config["max_position_embeddings"]),
                inv_freq=np.array(
                    [float.fromhex(x) for x in table["inv_freq_hex"]], dtype=np.float32
                ),
                attention_factor=table["attention_scaling"],
            )


def _rope(block: dict[str, object], head: int, longest: int) -> Rope:
    part = float(str(block.get("partial_rotary_factor", 1.0)))
    kind = str(block["rope_type"])
    fields = {key: value for key, value in block.items() if key not in _OTHER}
    for key in ("short_factor", "long_factor"):
        if isinstance(fields.get(key), list):
            fields[key] = tuple(fields[key])
    return Rope(
        type=kind,
        theta=float(str(block["rope_theta"])),
        head_dim=head,
        rotary_dim=head if kind == "proportional" else int(head * part),
        partial_rotary_factor=part if "partial_rotary_factor" in block else None,
        max_position_embeddings=longest,
        **fields,
    )
