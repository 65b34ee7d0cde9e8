"""Every config of rope_configs.json as Semantics, against transformers' own frequencies.

Reference: rope_reference.json, made by transformers 5.24.0 on torch 2.13 with
ATEN_CPU_CAPABILITY=default. Rows that transformers has no class for are checked
against the rules of each model's published code, as written in the tests.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from little_configs import reading

from packimport.errors import DocumentError
from packimport.rope.frequencies import frequencies
from packimport.rope.schedule import Rope
from packimport.semantics.config import Reading

DATA = Path(__file__).parent.parent / "data"
ROWS = {
    row["model"]: row["config"]
    for row in json.loads((DATA / "rope_configs.json").read_text(encoding="utf-8"))
}
REFERENCE = {
    row["model"]: row
    for row in json.loads((DATA / "rope_reference.json").read_text(encoding="utf-8"))["results"]
}
TABLES = {model: row["tables"] for model, row in REFERENCE.items() if row.get("tables")}
INCOMPLETE = {
    # The lists are cut, under names of their own.
    "microsoft/Phi-3.5-MoE-instruct": "/rope_scaling/short_factor_first8",
    "tencent/HunyuanOCR (text)": "/model_type",
    "CohereLabs/tiny-aya-global": "/num_hidden_layers",
}
# Which layers each entry of a reference with several tables stands for.
KINDS = {
    "deepseek-ai/DeepSeek-V4-Flash": {"main": {0, 1}, "compress": set(range(2, 43))},
    "XiaomiMiMo/MiMo-V2-Flash": {"full_attention": {0, *range(5, 48, 6)}},
    "google/gemma-4-26B-A4B": {"full_attention": set(range(5, 30, 6))},
    "google/gemma-3-1b-it": {"full_attention": set(range(5, 26, 6))},
    "allenai/Olmo-3.1-32B-Instruct": {"full_attention": set(range(3, 64, 4))},
}
# Layers without RoPE, counted from 0.
STILL = {
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct": set(range(3, 48, 4)),
    "HuggingFaceTB/SmolLM3-3B": set(range(3, 36, 4)),
    "Qwen/Qwen3.5-27B": {i for i in range(64) if i % 4 != 3},
    "Qwen/Qwen3-Next-80B-A3B": {i for i in range(48) if i % 4 != 3},
    "LiquidAI/LFM2.5-VL-1.6B (text_config)": {0, 1, 3, 4, 6, 7, 9, 11, 13, 15},
    "moonshotai/Kimi-K3": set(range(93)),
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": set(range(52)),
    "nvidia/Nemotron-H-56B-Base-8K": set(range(118)),
}
# By each model's published code, where the rule is not half-split.
PAIRS = {
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct": "interleaved",
    "deepseek-ai/DeepSeek-V2-Lite": "interleaved",
    "deepseek-ai/DeepSeek-V4-Flash": "interleaved",
    "deepseek-ai/DeepSeek-V3": "de-interleaved",
    "moonshotai/Kimi-K2-Instruct": "de-interleaved",
    "zai-org/GLM-5": "de-interleaved",
    "CohereForAI/aya-23-8B": "interleaved",
    "THUDM/chatglm3-6b": "interleaved",
    "EleutherAI/gpt-j-6b": "interleaved",
}


def row(model: str) -> Reading:
    return reading(ROWS[model])


def test_there_are_57_rows_and_41_have_tables() -> None:
    assert (len(ROWS), len(TABLES)) == (57, 41)


@pytest.mark.parametrize("model", sorted(set(ROWS) - set(INCOMPLETE)))
def test_every_row_is_read(model: str) -> None:
    found = row(model)
    text = ROWS[model].get("text_config", ROWS[model])
    count = text.get("num_hidden_layers")
    assert found.declared is not None
    assert [note for note in found.notes if "llama_4_scaling_beta" not in note] == []
    assert len(found.layers) == len(found.layer_sources)
    if count is not None:
        assert len(found.layers) == count
    assert {i for i, rope in enumerate(found.layers) if rope is None} == STILL.get(model, set())
    expected = None if all(rope is None for rope in found.layers) else "half-split"
    assert found.pair_layout == PAIRS.get(model, expected)


@pytest.mark.parametrize("model", sorted(INCOMPLETE))
def test_incomplete_rows_are_refused_by_pointer(model: str) -> None:
    with pytest.raises(DocumentError) as caught:
        row(model)
    assert caught.value.place == f"config.json#{INCOMPLETE[model]}"


@pytest.mark.parametrize("model", sorted(TABLES))
def test_frequencies_are_those_of_transformers(model: str) -> None:
    layers = row(model).layers
    for kind, table in TABLES[model].items():
        named = KINDS.get(model, {}).get(kind)
        others = set().union(*KINDS.get(model, {}).values())
        chosen = {
            rope
            for i, rope in enumerate(layers)
            if rope is not None and (i in named if named is not None else i not in others)
        }
        (rope,) = chosen
        found = frequencies(rope)
        expected = np.array([float.fromhex(h) for h in table["inv_freq_hex"]], dtype=np.float32)
        np.testing.assert_array_equal(found.inv_freq, expected)
        assert abs(found.attention_factor - table["attention_scaling"]) <= 1e-12


@pytest.mark.parametrize("model", sorted(set(ROWS) - set(INCOMPLETE)))
def test_a_declaration_says_the_same_when_read_again(model: str) -> None:
    first = row(model)
    again = reading(first.declared)
    assert again.layers == first.layers
    assert again.declared == first.declared
    assert again.pair_layout == first.pair_layout


def plain(theta: float, head_dim: int, rotary_dim: int | None = None, **fields: object) -> Rope:
    return Rope(
        type="default",
        theta=theta,
        head_dim=head_dim,
        rotary_dim=rotary_dim or head_dim,
        **fields,
    )


# Rows without a class in transformers 5.24.0 (GPT-J keeps no table there): what the code
# published with each checkpoint computes.
WITHOUT_CLASS = {
    "XiaomiMiMo/MiMo-7B-Base": plain(640000, 128, max_position_embeddings=32768),
    "microsoft/phi-2 (old phi-msft format)": plain(10000, 64, 32),
    "THUDM/chatglm3-6b": plain(10000, 128, 64, interleaved=True, max_position_embeddings=8192),
    "Qwen/Qwen-1_8B-Chat (Qwen1)": plain(10000, 128, max_position_embeddings=8192),
    "baichuan-inc/Baichuan2-7B": plain(10000, 128, max_position_embeddings=4096),
    "EleutherAI/gpt-j-6b": plain(10000, 256, 64, interleaved=True),
    "internlm/internlm2-chat-7b": plain(1000000, 128, max_position_embeddings=32768),
    "nvidia/Llama-3_3-Nemotron-Super-49B-v1": Rope(
        type="llama3",
        theta=500000,
        head_dim=128,
        rotary_dim=128,
        factor=8,
        low_freq_factor=1,
        high_freq_factor=4,
        original_max_position_embeddings=8192,
        max_position_embeddings=131072,
    ),
    "internlm/internlm3-8b-instruct": Rope(
        type="dynamic",
        theta=50000000,
        head_dim=128,
        rotary_dim=128,
        factor=6,
        max_position_embeddings=32768,
    ),
    "tencent/Hunyuan-A13B-Instruct": Rope(
        type="dynamic",
        theta=10000,
        head_dim=128,
        rotary_dim=128,
        factor=1,
        alpha=1000,
        max_position_embeddings=32768,
    ),
}


@pytest.mark.parametrize("model", sorted(WITHOUT_CLASS))
def test_rows_without_a_class(model: str) -> None:
    assert set(row(model).layers) == {WITHOUT_CLASS[model]}


def test_every_row_is_checked_against_something() -> None:
    nothing = {m for m in STILL if len(STILL[m]) == len(row(m).layers)}
    assert set(ROWS) - set(TABLES) - set(WITHOUT_CLASS) - nothing == set(INCOMPLETE)


def test_hunyuan_base_by_alpha() -> None:
    # 10000 * 1000^(128/126); facts of tencent/Hunyuan-A13B.
    (rope,) = set(row("tencent/Hunyuan-A13B-Instruct").layers)
    assert rope is not None
    base = 1 / float(frequencies(rope).inv_freq[1]) ** 64
    assert math.isclose(base, 11158839.925, rel_tol=1e-5)


def test_deepseek_v4_rotates_the_end_of_the_head() -> None:
    rope = row("deepseek-ai/DeepSeek-V4-Flash").layers[0]
    assert rope is not None
    assert (rope.head_dim, rope.rotary_dim, rope.trailing) == (512, 64, True)


@pytest.mark.parametrize(
    ("model", "sections", "layout"),
    [
        ("Qwen/Qwen2.5-VL-7B-Instruct", (16, 24, 24), "chunked"),
        ("Qwen/Qwen3-VL-32B-Instruct", (24, 20, 20), "interleaved"),
        ("Qwen/Qwen3.5-27B", (11, 11, 10), "interleaved"),
    ],
)
def test_sections_of_several_positions(model: str, sections: tuple[int, ...], layout: str) -> None:
    rope = next(rope for rope in row(model).layers if rope is not None)
    assert rope.type == "default"
    assert (rope.mrope_section, rope.mrope_layout) == (sections, layout)


def test_sources_name_file_and_pointer() -> None:
    sources = row("google/gemma-3-1b-it").layer_sources
    assert str(sources[0]["theta"]) == "config.json#/rope_local_base_freq"
    assert str(sources[5]["theta"]) == "config.json#/rope_theta"
    sources = row("google/gemma-4-26B-A4B").layer_sources
    pointer = "/text_config/rope_parameters/full_attention"
    assert str(sources[5]["partial_rotary_factor"]) == (
        f"config.json#{pointer}/partial_rotary_factor"
    )
    assert str(sources[5]["head_dim"]) == "config.json#/text_config/global_head_dim"
    sources = row("deepseek-ai/DeepSeek-V4-Flash").layer_sources
    compress = "families.yaml#/families/deepseek_v4/schedules/compress"
    assert str(sources[2]["attention_factor"]) == f"{compress}/attention_factor"
    sources = row("baichuan-inc/Baichuan2-7B").layer_sources
    assert str(sources[0]["theta"]) == "families.yaml#/families/baichuan/theta"
