"""What bad input gets: an error with file, JSON pointer, what was found and what is allowed."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from little_configs import BLOCKS, FILE, config, only_rope, reading, scaled

from packimport.errors import DocumentError
from packimport.rope.fields import FIELDS
from packimport.semantics.reader import read_config

TYPES = sorted(BLOCKS)
SCALED = [kind for kind in TYPES if BLOCKS[kind]]
WITH_FACTOR = [kind for kind in TYPES if "factor" in BLOCKS[kind]]
# Yarn's factor may be null but not absent, a proportional one's may be both.
NEED_FACTOR = [kind for kind in WITH_FACTOR if kind not in ("yarn", "proportional")]
WITH_ORIGINAL = [kind for kind in TYPES if "original_max_position_embeddings" in BLOCKS[kind]]


def refused(value: object, pointer: str, *words: str) -> DocumentError:
    """The error that a config gets, as a file and as values: it names file, pointer, what was found
    and what is allowed, and those words."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / FILE
        path.write_text(json.dumps(value), encoding="utf-8")
        with pytest.raises(DocumentError) as from_disk:
            read_config(path)
    with pytest.raises(DocumentError) as caught:
        reading(value)
    assert from_disk.value.place == f"{path}#{pointer}", str(from_disk.value)
    assert caught.value.place == f"{FILE}#{pointer}", str(caught.value)
    for error in (from_disk.value, caught.value):
        assert error.allowed or error.fix, str(error)
        assert error.found or "missing" in error.message or "no entry" in error.message, str(error)
    for word in words:
        assert word in str(caught.value)
    return caught.value


def test_there_is_a_block_of_each_type() -> None:
    assert set(BLOCKS) == set(FIELDS)


@pytest.mark.parametrize("kind", TYPES)
def test_each_block_is_right_as_it_stands(kind: str) -> None:
    assert only_rope(scaled(kind)).type == kind


@pytest.mark.parametrize("key", ["rope_type", "type"])
def test_unknown_type(key: str) -> None:
    error = refused(
        config(rope_scaling={key: "spiral", "factor": 2.0}), f"/rope_scaling/{key}", "spiral"
    )
    assert error.allowed is not None
    for kind in TYPES:
        assert kind in error.allowed


@pytest.mark.parametrize("value", [7, True, ["llama3"]])
def test_type_that_is_no_string(value: object) -> None:
    refused(config(rope_scaling={"rope_type": value}), "/rope_scaling/rope_type", "not a string")


@pytest.mark.parametrize("kind", TYPES)
def test_two_types_that_disagree(kind: str) -> None:
    other = "linear" if kind == "default" else "default"
    refused(scaled(kind, type=other), "/rope_scaling/type", "contradicts", kind)


@pytest.mark.parametrize(("kind", "spelling"), [("longrope", "su"), ("yarn", "deepseek_yarn")])
def test_two_spellings_of_one_type_agree(kind: str, spelling: str) -> None:
    assert only_rope(scaled(kind, type=spelling)).type == kind


@pytest.mark.parametrize("kind", SCALED)
@pytest.mark.parametrize("missing", [..., None])
def test_scaling_without_a_type(kind: str, missing: object) -> None:
    first = next(key for key in BLOCKS[kind] if key != "partial_rotary_factor")
    error = refused(
        scaled(kind, rope_type=missing), f"/rope_scaling/{first}", "without a type", "rope_type"
    )
    assert error.allowed is not None
    assert kind in error.allowed


@pytest.mark.parametrize("kind", [*NEED_FACTOR, "yarn"])
def test_missing_factor(kind: str) -> None:
    refused(scaled(kind, factor=...), "/rope_scaling/factor", "missing")


@pytest.mark.parametrize("kind", NEED_FACTOR)
def test_null_factor(kind: str) -> None:
    refused(scaled(kind, factor=None), "/rope_scaling/factor", "found null")


@pytest.mark.parametrize("absent", [..., None])
def test_a_factor_that_is_optional(absent: object) -> None:
    # transformers 5.24.0, `_compute_proportional_rope_parameters`: factor 1 where it is absent.
    assert only_rope(scaled("proportional", factor=absent)).factor is None
    assert only_rope(scaled("longrope", factor=absent)).factor is None


def test_null_factor_of_yarn_is_legal() -> None:
    # facts: transformers 5.24.0 takes max_position_embeddings over the original length.
    assert only_rope(scaled("yarn", factor=None)).factor is None


@pytest.mark.parametrize("kind", [*WITH_FACTOR, "longrope"])
@pytest.mark.parametrize(
    "value", [-2.0, 0, 0.5, float("nan"), float("inf"), "4.0", True, [4.0], {"x": 1}]
)
def test_factor_that_is_none(kind: str, value: object) -> None:
    refused(scaled(kind, factor=value), "/rope_scaling/factor", "found", "allowed")


@pytest.mark.parametrize("key", ["short_factor", "long_factor"])
@pytest.mark.parametrize("length", [0, 31, 33])
def test_list_of_the_wrong_length(key: str, length: int) -> None:
    refused(
        scaled("longrope", **{key: [1.0] * length}),
        f"/rope_scaling/{key}",
        f"a list of {length}",
        "32",
    )


@pytest.mark.parametrize("entry", ["1.0", None, True])
def test_list_with_an_entry_that_is_no_number(entry: object) -> None:
    values = [1.0] * 5 + [entry] + [1.0] * 26
    refused(scaled("longrope", long_factor=values), "/rope_scaling/long_factor/5", "not a number")


@pytest.mark.parametrize("entry", [0, -1.0])
def test_list_with_an_entry_out_of_range(entry: float) -> None:
    values = [1.0] * 5 + [entry] + [1.0] * 26
    refused(scaled("longrope", long_factor=values), "/rope_scaling/long_factor", "entry 5")


def test_a_width_that_the_code_does_not_read() -> None:
    """transformers 5.24.0 rotates 128 entries of this one, whatever rotary_dim says."""
    value = config(model_type="minimax_m3_vl_text", head_dim=128)
    assert only_rope(value).rotary_dim == 128
    refused({**value, "rotary_dim": 64}, "/rotary_dim", "rotates 128", "partial_rotary_factor 0.5")
    stated = {**value, "rotary_dim": 64, "partial_rotary_factor": 0.5}
    assert only_rope(stated).rotary_dim == 64


@pytest.mark.parametrize("kind", TYPES)
def test_odd_rotary_dimension(kind: str) -> None:
    value = scaled(kind) | {"head_dim": 63}
    if kind == "longrope":
        refused(value, "/rope_scaling/short_factor", "31, one per pair")
        lists = dict.fromkeys(("short_factor", "long_factor"), [1.0] * 31)
        value = scaled(kind, **lists) | {"head_dim": 63}
    refused(value, "/head_dim", "even", "63")


def test_odd_rotary_dimension_of_a_part() -> None:
    refused(config("phi", partial_rotary_factor=0.52), "/partial_rotary_factor", "even")


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("part", [0, -0.5, 1.5, "0.5", True, float("nan")])
def test_partial_factor_out_of_range(kind: str, part: object) -> None:
    if kind != "proportional":  # its block states a part, which counts
        value = scaled(kind, "phi3") | {"partial_rotary_factor": part}
        refused(value, "/partial_rotary_factor", "allowed")
    value = scaled(kind, "phi3", partial_rotary_factor=part)
    refused(value, "/rope_scaling/partial_rotary_factor", "allowed")


@pytest.mark.parametrize("kind", WITH_ORIGINAL)
@pytest.mark.parametrize("value", [0, -1, 0.5, "8192", True])
def test_original_max_out_of_range(kind: str, value: object) -> None:
    key = "original_max_position_embeddings"
    refused(scaled(kind, **{key: value}), f"/rope_scaling/{key}", "allowed")
    refused(scaled(kind) | {key: value}, f"/{key}", "allowed")


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("key", ["attn_factor", "finetuned_", "full_attention_", "freq_factors"])
def test_unknown_key_of_a_block(kind: str, key: str) -> None:
    refused(
        scaled(kind, **{key: 1.0}),
        f"/rope_scaling/{key}",
        f"a key that type {kind} does not have",
    )


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("linear", "low_freq_factor"),
        ("linear", "original_max_position_embeddings"),
        ("dynamic", "alpha"),
        ("dynamic", "beta_fast"),
        ("llama3", "attention_factor"),
        ("yarn", "short_factor"),
        ("longrope", "mscale"),
        ("longrope", "short_mscale"),
        ("proportional", "alpha"),
        ("proportional", "truncate"),
        ("default", "alpha"),
    ],
)
def test_key_of_another_type(kind: str, key: str) -> None:
    refused(scaled(kind, **{key: 1.0}), f"/rope_scaling/{key}", f"type {kind}")


@pytest.mark.parametrize("key", ["factor", "mrope_section", "beta_fast"])
def test_key_that_plain_rope_does_not_have(key: str) -> None:
    refused(
        config(rope_scaling={"rope_type": "default", key: 2.0}), f"/rope_scaling/{key}", "default"
    )


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("llama3", "low_freq_factor"),
        ("llama3", "high_freq_factor"),
        ("proportional", "partial_rotary_factor"),
        ("longrope", "short_factor"),
        ("longrope", "long_factor"),
    ],
)
@pytest.mark.parametrize("absent", [..., None])
def test_missing_key_of_a_type(kind: str, key: str, absent: object) -> None:
    refused(scaled(kind, **{key: absent}), f"/rope_scaling/{key}", f"type {kind}", "missing")


NUMBERS = [
    ("llama3", "low_freq_factor"),
    ("llama3", "high_freq_factor"),
    ("yarn", "beta_fast"),
    ("yarn", "beta_slow"),
    ("yarn", "attention_factor"),
    ("yarn", "mscale"),
    ("yarn", "mscale_all_dim"),
    ("longrope", "attention_factor"),
]


@pytest.mark.parametrize(("kind", "key"), NUMBERS)
@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf"), "1.0", True, [1.0]])
def test_number_of_a_type_that_is_none(kind: str, key: str, value: object) -> None:
    refused(scaled(kind, **{key: value}), f"/rope_scaling/{key}", "found", "allowed")


@pytest.mark.parametrize("value", [0, 1, "false", 0.5, []])
def test_truncate_that_is_no_flag(value: object) -> None:
    refused(scaled("yarn", truncate=value), "/rope_scaling/truncate", "true or false")


def test_betas_of_yarn_in_the_wrong_order() -> None:
    refused(scaled("yarn", beta_fast=0.5), "/rope_scaling/beta_fast", "0.5", "beta_slow")
    refused(scaled("yarn", beta_slow=64.0), "/rope_scaling/beta_slow", "64.0", "32")


def hunyuan(**block: object) -> dict[str, object]:
    return config("hunyuan", rope_scaling={"type": "dynamic", **block})


@pytest.mark.parametrize("value", [0, -1000.0, float("nan"), float("inf"), "1000", True, [1000.0]])
def test_alpha_that_is_none(value: object) -> None:
    assert only_rope(hunyuan(alpha=1000.0)).alpha == 1000.0
    refused(hunyuan(alpha=value), "/rope_scaling/alpha", "found", "allowed")
    refused(hunyuan(alpha=1000.0, factor=value), "/rope_scaling/factor", "found", "allowed")


def test_hunyuan_without_alpha_needs_a_factor() -> None:
    refused(hunyuan(), "/rope_scaling/factor", "missing")
    refused(hunyuan(factor=None), "/rope_scaling/factor", "null")
    refused(hunyuan(factor=2.0, short_factor=[1.0]), "/rope_scaling/short_factor", "hunyuan")


def test_llama3_bounds_in_the_wrong_order() -> None:
    refused(
        scaled("llama3", low_freq_factor=4.0, high_freq_factor=1.0),
        "/rope_scaling/high_freq_factor",
    )


def test_dynamic_without_a_maximum() -> None:
    value = scaled("dynamic") | {"max_position_embeddings": None}
    refused(value, "/max_position_embeddings", "missing")


@pytest.mark.parametrize("block", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize("value", [8, "yarn", [], True])
def test_block_that_is_no_object(block: str, value: object) -> None:
    refused(config(**{block: value}), f"/{block}", "not an object")


def nested(kind: str, **more: object) -> dict[str, object]:
    """A block of that type for Gemma 3's full-attention layers, and what stands beside it."""
    full = {"rope_type": kind, **BLOCKS[kind]}
    return config("gemma3_text", num_hidden_layers=6, rope_parameters={FULL: full, **more})


FULL, SLIDING = "full_attention", "sliding_attention"
PLAIN = {"rope_type": "default"}


@pytest.mark.parametrize("kind", [kind for kind in TYPES if kind != "proportional"])
def test_nested_block_that_mixes(kind: str) -> None:
    assert reading(nested(kind, sliding_attention=PLAIN)).layers[5] is not None
    mixes = {"rope_theta": 1e4, "rope_type": kind, "factor": 2.0, "type": None, "some": PLAIN}
    for key, stray in mixes.items():
        value = nested(kind, sliding_attention=PLAIN, **{key: stray})
        refused(value, f"/rope_parameters/{key}", "among blocks of layer types", FULL)
    refused(nested(kind, sliding_attention=2.0), f"/rope_parameters/{SLIDING}", "not an object")
    refused(nested(kind), f"/rope_parameters/{SLIDING}", "no entry")
    bad = nested(kind, sliding_attention={**PLAIN, "factor": 2.0})
    refused(bad, f"/rope_parameters/{SLIDING}/factor", "default")


def test_block_for_a_layer_type_that_is_none() -> None:
    refused(
        config(rope_parameters={"some_attention": {"rope_type": "default"}}),
        "/rope_parameters/some_attention",
    )


@pytest.mark.parametrize(
    ("other", "pointer"),
    [
        ({"rope_type": "default"}, "/rope_scaling/"),
        ({"rope_type": "linear", "factor": 8.0}, "/rope_scaling/factor"),
        ({"rope_type": "yarn", "factor": 4.0}, "/rope_scaling/rope_type"),
    ],
)
def test_two_blocks_that_disagree(other: dict[str, object], pointer: str) -> None:
    value = scaled("linear") | {"rope_parameters": other}
    with pytest.raises(DocumentError, match="contradicts") as caught:
        reading(value)
    assert str(caught.value.place).startswith(f"{FILE}#{pointer}")
    assert caught.value.allowed is not None


def test_two_blocks_of_different_theta() -> None:
    refused(
        scaled("linear", rope_theta=1e6)
        | {"rope_parameters": {"type": "linear", "factor": 4, "rope_theta": 1e4}},
        "/rope_scaling/rope_theta",
        "contradicts",
    )


def test_two_blocks_that_agree() -> None:
    both = scaled("linear") | {
        "rope_parameters": {"type": "linear", "factor": 4, "rope_theta": 1e6}
    }
    rope = only_rope(both)
    assert (rope.type, rope.factor, rope.theta) == ("linear", 4.0, 1e6)


@pytest.mark.parametrize("key", ["hidden_size", "num_hidden_layers", "head_dim"])
@pytest.mark.parametrize("value", ["64", True, 0, -1, 1.5, [64], 2**40])
def test_size_that_is_none(key: str, value: object) -> None:
    refused(config(**{key: value}), f"/{key}", "found", "allowed")


@pytest.mark.parametrize("value", ["10000", True, 0, -1.0, float("nan"), [10000.0]])
def test_theta_that_is_none(value: object) -> None:
    refused(config(rope_theta=value), "/rope_theta", "found", "allowed")


def test_missing_layer_count() -> None:
    refused(config(num_hidden_layers=...), "/num_hidden_layers", "missing")


def test_missing_head_size() -> None:
    refused(config(head_dim=..., num_attention_heads=...), "/head_dim", "missing")


def test_head_size_that_does_not_divide() -> None:
    refused(config(head_dim=..., hidden_size=250), "/hidden_size", "not a multiple")


def test_two_spellings_of_a_size_that_disagree() -> None:
    refused(config(n_layer=3), "/n_layer", "contradicts /num_hidden_layers")


def test_two_spellings_of_theta_that_disagree() -> None:
    refused(config(rotary_emb_base=10000), "/rotary_emb_base", "contradicts /rope_theta")


def test_rope_keys_without_a_model_type() -> None:
    refused(config(model_type=...), "/model_type", "missing")


def test_two_text_models() -> None:
    inner = config()
    refused(
        {"model_type": "vlm", "text_config": inner, "llm_config": inner}, "/llm_config", "two text"
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("rope_local_base_freq", 10000.0),
        ("no_rope_layers", [1, 0]),
        ("swa_rope_theta", 10000.0),
        ("use_dynamic_ntk", True),
        ("alibi", True),
        ("position_embedding_type", "alibi"),
        ("rope_interleaved", True),
        ("dual_chunk_attention_config", {"chunk_size": 1}),
        ("qk_rope_head_dim", 64),
        ("rope_ratio", 2.0),
    ],
)
def test_key_on_position_that_the_family_does_not_know(key: str, value: object) -> None:
    refused(config(**{key: value}), f"/{key}", "bears on position", "llama")


@pytest.mark.parametrize(
    ("key", "value"), [("alibi", False), ("position_embedding_type", "rope"), ("rotary", True)]
)
def test_key_on_position_that_says_what_is_so_anyway(key: str, value: object) -> None:
    assert only_rope(config(**{key: value})) == only_rope(config())


@pytest.mark.parametrize("key", ["partial_rotary_factor", "rotary_pct"])
def test_part_of_a_head_where_the_family_rotates_whole_ones(key: str) -> None:
    # transformers 5.24.0 ignores it for plain RoPE in LlamaRotaryEmbedding, applies it to
    # scaled types, and then LlamaAttention can't multiply: the shapes differ.
    refused(config(**{key: 0.5}), f"/{key}", "rotates whole heads")
    assert only_rope(config(**{key: 1.0})).rotary_dim == 64


def test_rotary_dim_that_contradicts_the_part() -> None:
    refused(config("phi", partial_rotary_factor=0.5, rotary_dim=16), "/rotary_dim", "32")


@pytest.mark.parametrize("family", ["internlm2", "internlm3"])
@pytest.mark.parametrize("kind", [k for k in SCALED if k not in ("linear", "dynamic")])
def test_type_that_the_family_does_not_have(family: str, kind: str) -> None:
    error = refused(scaled(kind, family), "/rope_scaling/rope_type", family)
    assert error.allowed == "default, linear, dynamic"


@pytest.mark.parametrize("family", ["internlm2", "internlm3"])
@pytest.mark.parametrize("kind", ["linear", "dynamic"])
def test_internlm_needs_a_factor(family: str, kind: str) -> None:
    assert only_rope(scaled(kind, family)).type == kind
    refused(scaled(kind, family, factor=...), "/rope_scaling/factor", "missing")
    refused(scaled(kind, family, factor=None), "/rope_scaling/factor", "null")


def test_mrope_needs_its_sections() -> None:
    refused(
        config("qwen2_vl", rope_scaling={"type": "mrope"}), "/rope_scaling/mrope_section", "missing"
    )


@pytest.mark.parametrize(
    ("sections", "entry"), [([16, 8, 7], ""), ([8, 8, -16, 32], "/2"), ([8, 24], ""), ("all", "")]
)
def test_mrope_sections_that_do_not_fit(sections: object, entry: str) -> None:
    block = {"type": "mrope", "mrope_section": sections}
    refused(
        config("qwen2_vl", rope_scaling=block), f"/rope_scaling/mrope_section{entry}", "allowed"
    )


def test_mrope_sections_of_another_layout() -> None:
    block = {"rope_type": "default", "mrope_section": [16, 8, 8], "mrope_interleaved": True}
    refused(config("qwen2_vl", rope_scaling=block), "/rope_scaling/mrope_interleaved", "chunked")


def test_layer_types_of_the_wrong_length() -> None:
    refused(config(layer_types=["full_attention"]), "/layer_types", "a list of 1", "2")


def test_layer_type_that_the_family_does_not_know() -> None:
    refused(
        config("qwen3", layer_types=["full_attention", "linear_attention"]),
        "/layer_types/1",
        "linear_attention",
    )


def test_family_that_is_refused() -> None:
    refused(config("nanochat"), "/model_type", "turns the other way")


def test_variant_that_is_not_known() -> None:
    refused(config("baichuan", hidden_size=256), "/hidden_size", "4096")
