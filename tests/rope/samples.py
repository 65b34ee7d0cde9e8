"""One valid Rope per kind of schedule; the numbers are those of published configs."""

from __future__ import annotations

from dataclasses import replace

from packimport.rope.schedule import Rope

PLAIN = Rope(type="default", theta=500000.0, head_dim=64, rotary_dim=64)

# Lists of a LongRoPE model's shape: the short one near 1, the long one rising.
SHORT = tuple(1.0 + 0.02 * i for i in range(48))
LONG = tuple(1.08 * 1.09**i for i in range(48))

SAMPLES: dict[str, Rope] = {
    "default": PLAIN,
    "default with freq_factors": replace(
        PLAIN, freq_factors=tuple(1.0 + 0.97 * i for i in range(32))
    ),
    "linear": replace(PLAIN, type="linear", theta=10000.0, factor=8.0),
    # InternLM3-8B-Instruct.
    "dynamic": Rope(
        type="dynamic",
        theta=50000000,
        head_dim=128,
        rotary_dim=128,
        factor=6.0,
        max_position_embeddings=32768,
    ),
    # Hunyuan-A13B-Instruct.
    "dynamic with alpha": Rope(
        type="dynamic",
        theta=10000.0,
        head_dim=128,
        rotary_dim=128,
        factor=1.0,
        alpha=1000.0,
        max_position_embeddings=32768,
    ),
    # Llama-3.2-1B-Instruct.
    "llama3": replace(
        PLAIN,
        type="llama3",
        factor=32.0,
        low_freq_factor=1.0,
        high_freq_factor=4.0,
        original_max_position_embeddings=8192,
        max_position_embeddings=131072,
    ),
    # gpt-oss-20b.
    "yarn": Rope(
        type="yarn",
        theta=150000,
        head_dim=64,
        rotary_dim=64,
        factor=32.0,
        original_max_position_embeddings=4096,
        max_position_embeddings=131072,
        beta_fast=32.0,
        beta_slow=1.0,
        truncate=False,
    ),
    # The dimensions of Phi-3.5-mini-instruct.
    "longrope": Rope(
        type="longrope",
        theta=10000.0,
        head_dim=96,
        rotary_dim=96,
        short_factor=SHORT,
        long_factor=LONG,
        original_max_position_embeddings=4096,
        max_position_embeddings=131072,
    ),
    # Gemma 4's full-attention layers.
    "proportional": Rope(
        type="proportional",
        theta=1000000.0,
        head_dim=512,
        rotary_dim=512,
        partial_rotary_factor=0.25,
    ),
}
