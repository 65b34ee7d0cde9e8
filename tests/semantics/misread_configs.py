"""Configs that say a thing where transformers 5.24.0 does not read it."""

from __future__ import annotations

from little_configs import config

LINEAR = {"rope_type": "linear", "factor": 8.0}
LATENT = {"qk_rope_head_dim": 32, "qk_nope_head_dim": 32}
KINDS = ["full_attention", "sliding_attention"]
STEP = {"layer_types": KINDS}
NESTED = {"full_attention": LINEAR, "sliding_attention": {"rope_type": "default"}}


def made(family: str, **keys: object) -> dict[str, object]:
    """A config of two layers without a base."""
    return config(family, **{"rope_theta": ..., **keys})


# Refused, with the pointer at which.
REFUSED: dict[str, tuple[dict[str, object], str]] = {
    **{
        f"{family}-flat": (
            made(family, layer_types=KINDS, rope_parameters={**LINEAR, "rope_theta": 7e4}),
            "/rope_parameters",
        )
        for family in ("olmo3", "gemma3_text", "gemma3n_text", "step3p5")
    },
    **{
        f"{family}-nested-scaling": (
            made(family, layer_types=KINDS, rope_scaling=NESTED),
            "/rope_scaling",
        )
        for family in ("olmo3", "gemma3_text", "gemma3n_text", "step3p5")
    },
    "olmo3-theta": (made("olmo3", layer_types=KINDS, rope_theta=7e4), "/rope_theta"),
    "olmo3-theta-in-scaling": (
        made("olmo3", layer_types=KINDS, rope_scaling={**LINEAR, "rope_theta": 7e4}),
        "/rope_scaling/rope_theta",
    ),
    "gpt-neox-theta": (made("gpt_neox", rope_theta=7e4), "/rope_theta"),
    "gpt-neox-part": (made("gpt_neox", partial_rotary_factor=0.5), "/partial_rotary_factor"),
    "gemma4-theta": (made("gemma4_text", layer_types=KINDS[::-1], rope_theta=7e4), "/rope_theta"),
    "apertus-empty": (made("apertus", rope_parameters={}), "/rope_parameters"),
    "step-part": (made("step3p5", **STEP, partial_rotary_factor=0.5), "/partial_rotary_factor"),
    "step-uneven": (
        made("step3p5", layer_types=["full_attention"] * 2, rope_theta=[1e4, 2e4]),
        "/rope_theta/1",
    ),
    "step-list-and-block": (
        made("step3p5", **STEP, rope_theta=[5e6, 1e4], rope_scaling={**LINEAR, "rope_theta": 7e4}),
        "/rope_scaling/rope_theta",
    ),
    "llama-nested": (made("llama", layer_types=KINDS, rope_parameters=NESTED), "/rope_parameters"),
    "llava-flat": (made("llava", rope_theta=7e4), "/text_config"),
}
# Noted; the config counts, and transformers' table is another one.
NOTED: dict[str, tuple[dict[str, object], str]] = {
    "mimo-theta": (made("mimo_v2_flash", head_dim=192, rope_theta=7e4), "/rope_theta"),
    "llama-spelling": (made("llama", rotary_emb_base=7e4), "/rotary_emb_base"),
    "glm-rotary-dim": (made("glm4_moe", rotary_dim=16), "/rotary_dim"),
    "two-blocks": (
        made("llama", rope_scaling=LINEAR, rope_parameters={**LINEAR, "rope_theta": 7e4}),
        "/rope_parameters/rope_theta",
    ),
    "gemma3n-type": (
        made(
            "gemma3n_text", layer_types=KINDS[::-1], rope_scaling={"type": "linear", "factor": 8.0}
        ),
        "/rope_scaling/type",
    ),
    "latent-head": (made("deepseek_v3", **LATENT), "/head_dim"),
    "latent-part": (
        made(
            "deepseek_v2",
            **LATENT,
            partial_rotary_factor=0.5,
            rope_scaling={"rope_type": "yarn", "factor": 4.0},
        ),
        "/partial_rotary_factor",
    ),
}
# Read as transformers 5.24.0 does: the base and, by its rotary module, the second frequency.
READ: dict[str, tuple[dict[str, object], float, float]] = {
    "apertus-theta": (made("apertus", rope_theta=77777.0), 12e6, 0.60086),
    "ministral3-theta": (made("ministral3", rope_theta=77777.0), 1e6, 0.64938),
    "ministral3-block": (made("ministral3", rope_scaling=LINEAR), 1e4, 0.093737),
    "mistral4-theta": (made("mistral4", **LATENT, rope_theta=77777.0), 1e4, 0.56234),
    "gemma4-block": (
        made(
            "gemma4_text",
            layer_types=["full_attention"] * 2,
            rope_parameters={"full_attention": {**LINEAR, "rope_theta": 1e6}},
        ),
        1e6,
        0.1184329,
    ),
    "gpt-neox-base": (made("gpt_neox", rotary_emb_base=77777.0), 77777.0, 0.244705),
}
