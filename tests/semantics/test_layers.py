"""Which layers rotate and by which block: the rules that families.yaml states.

Expected layers are those of transformers 5.24.0's config classes (test_semantics_oracle.py
compares with the live ones), written out here.
"""

from __future__ import annotations

import pytest
from little_configs import FILE, config, reading

from packimport.errors import DocumentError
from packimport.rope.schedule import Rope


def layers(value: object) -> tuple[Rope | None, ...]:
    return reading(value).layers


def thetas(value: object) -> list[float | None]:
    """The base of each layer; None for a layer without RoPE."""
    return [None if rope is None else rope.theta for rope in layers(value)]


def still(value: object) -> list[int]:
    """The layers without RoPE."""
    return [i for i, rope in enumerate(layers(value)) if rope is None]


def sized(model_type: str, count: int, **keys: object) -> dict[str, object]:
    return config(model_type, num_hidden_layers=count, **{"rope_theta": ..., **keys})


def test_gemma3_every_sixth_layer_is_global() -> None:
    assert thetas(sized("gemma3_text", 8)) == [1e4] * 5 + [1e6] + [1e4] * 2
    assert thetas(sized("gemma3_text", 4, sliding_window_pattern=2)) == [1e4, 1e6] * 2


def test_gemma3_layer_types_count_before_the_pattern() -> None:
    kinds = ["full_attention", "sliding_attention"]
    assert thetas(sized("gemma3_text", 2, layer_types=kinds, sliding_window_pattern=2)) == [
        1e6,
        1e4,
    ]


def test_gemma3_block_is_for_global_layers() -> None:
    value = sized(
        "gemma3_text",
        6,
        rope_theta=2e6,
        rope_local_base_freq=2e4,
        rope_scaling={"rope_type": "linear", "factor": 8.0},
    )
    found = layers(value)
    assert [rope and (rope.type, rope.theta, rope.factor) for rope in found] == [
        ("default", 2e4, None)
    ] * 5 + [("linear", 2e6, 8.0)]


def test_gemma3_nested_blocks() -> None:
    nested = {
        "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 3e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 3e4},
    }
    found = layers(sized("gemma3_text", 6, rope_parameters=nested))
    assert [rope and (rope.type, rope.theta) for rope in found] == [("default", 3e4)] * 5 + [
        ("linear", 3e6)
    ]


def test_an_entry_that_is_null_is_no_rope() -> None:
    nested = {"full_attention": None, "sliding_attention": {"rope_type": "default"}}
    assert still(sized("gemma3_text", 12, rope_parameters=nested)) == [5, 11]


def test_gemma3_flat_and_nested_blocks_may_agree() -> None:
    block = {"rope_type": "linear", "factor": 8.0}
    nested = {"full_attention": block, "sliding_attention": {"rope_type": "default"}}
    value = sized("gemma3_text", 6, rope_scaling=block, rope_parameters=nested)
    assert [rope and rope.factor for rope in layers(value)] == [None] * 5 + [8.0]
    value["rope_scaling"] = {**block, "factor": 4.0}
    with pytest.raises(DocumentError, match="/rope_scaling/factor: contradicts"):
        reading(value)


def test_gemma3_of_the_larger_sizes_leaves_its_heads_out() -> None:
    # google/gemma-3-4b-it's text_config.
    text = {
        "hidden_size": 2560,
        "model_type": "gemma3_text",
        "num_hidden_layers": 34,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
        "sliding_window": 1024,
    }
    found = reading({"model_type": "gemma3", "text_config": text})
    assert found.model_type == "gemma3_text"
    assert {rope.head_dim for rope in found.layers if rope is not None} == {256}
    assert found.dimensions.value("num_attention_heads") == 8


def test_a_text_model_without_a_name_is_its_wrappers() -> None:
    text = {k: v for k, v in sized("gemma3_text", 6).items() if k != "model_type"}
    found = reading({"model_type": "gemma3", "text_config": text})
    assert found.model_type == "gemma3_text"
    with pytest.raises(DocumentError, match=f"{FILE}#/text_config/model_type"):
        reading({"model_type": "some_vlm", "text_config": {**text, "rope_theta": 1e4}})


@pytest.mark.parametrize("nest", ["text_config", "llm_config", "language_config"])
def test_nested_keys_count_and_outer_ones_do_not(nest: str) -> None:
    outer = {"model_type": "some_vlm", "rope_theta": 1.0, "num_hidden_layers": 99}
    found = reading({**outer, nest: config("qwen2", rope_theta=7e5)})
    assert [rope and rope.theta for rope in found.layers] == [7e5] * 2
    assert str(found.layer_sources[0]["theta"]) == f"{FILE}#/{nest}/rope_theta"


def test_gemma4_defaults() -> None:
    found = layers(sized("gemma4_text", 7, head_dim=256))
    # Every sixth layer is global, and the last one always.
    assert [rope and rope.type for rope in found] == ["default"] * 5 + ["proportional"] * 2
    assert found[0] is not None
    assert found[5] is not None
    assert (found[0].theta, found[0].head_dim) == (1e4, 256)
    assert (found[5].theta, found[5].head_dim, found[5].partial_rotary_factor) == (1e6, 512, 0.25)


def test_gemma4_refuses_a_flat_block_and_a_local_end() -> None:
    with pytest.raises(DocumentError, match=r"#/rope_scaling: .*per layer type"):
        reading(sized("gemma4_text", 6, rope_scaling={"rope_type": "linear", "factor": 2.0}))
    with pytest.raises(DocumentError, match="#/layer_types/1: the last layer"):
        reading(sized("gemma4_text", 2, layer_types=["full_attention", "sliding_attention"]))


def test_olmo3_scales_global_layers_only() -> None:
    block = {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192}
    found = layers(sized("olmo3", 4, rope_scaling=block))
    assert [rope and (rope.type, rope.theta) for rope in found] == [("default", 5e5)] * 3 + [
        ("yarn", 5e5)
    ]


def test_cohere2_rotates_local_layers_only() -> None:
    assert still(sized("cohere2", 8)) == [3, 7]
    assert still(sized("cohere2", 6, sliding_window_pattern=3)) == [2, 5]
    kinds = ["full_attention", "sliding_attention"]
    assert still(sized("cohere2", 2, layer_types=kinds)) == [0]


def test_exaone4_rotates_local_layers_only_where_it_has_any() -> None:
    assert still(sized("exaone4", 8, sliding_window=4096)) == [3, 7]
    # EXAONE-4.0-1.2B has no window: every layer rotates.
    kinds = ["full_attention"] * 4
    assert still(sized("exaone4", 4, sliding_window=None, layer_types=kinds)) == []


def test_exaone4_pattern_of_letters_counts_for_nothing_beside_layer_types() -> None:
    kinds = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]
    value = sized(
        "exaone4", 4, sliding_window=4096, sliding_window_pattern="LLLG", layer_types=kinds
    )
    assert still(value) == [3]
    del value["layer_types"]
    with pytest.raises(DocumentError, match="#/sliding_window_pattern: not an integer"):
        reading(value)


@pytest.mark.parametrize("empty", [..., None, []])
def test_llama4_empty_or_null_is_every_fourth(empty: object) -> None:
    assert still(sized("llama4_text", 8, no_rope_layers=empty)) == [3, 7]


def test_llama4_flags_are_one_for_rope() -> None:
    assert still(sized("llama4_text", 4, no_rope_layers=[1, 0, 1, 1])) == [1]
    assert still(sized("llama4_text", 6, no_rope_layer_interval=3)) == [2, 5]


def test_llama4_layer_types_say_nothing_of_rope() -> None:
    kinds = ["chunked_attention", "full_attention"] * 2
    assert still(sized("llama4_text", 4, layer_types=kinds)) == [3]


def test_smollm3_only_null_is_every_fourth() -> None:
    assert still(sized("smollm3", 8)) == [3, 7]
    assert still(sized("smollm3", 4, no_rope_layers=[1, 1, 0, 1])) == [2]
    with pytest.raises(DocumentError, match="#/no_rope_layers: a list of the wrong length"):
        reading(sized("smollm3", 4, no_rope_layers=[]))


@pytest.mark.parametrize("flag", [2, "1", None])
def test_smollm3_flag_that_is_none(flag: object) -> None:
    with pytest.raises(DocumentError, match="#/no_rope_layers/1: an unknown kind of layer"):
        reading(sized("smollm3", 2, no_rope_layers=[1, flag]))


def test_deepseek_v4_layers_by_compression() -> None:
    keys = {"head_dim": 512, "qk_rope_head_dim": 64}
    yarn = {"type": "yarn", "factor": 16, "original_max_position_embeddings": 65536}
    value = sized("deepseek_v4", 4, compress_ratios=[0, 4, 128, 0, 0], rope_scaling=yarn, **keys)
    found = layers(value)
    assert [rope and (rope.type, rope.theta, rope.attention_factor) for rope in found] == [
        ("default", 1e4, None),
        ("yarn", 1.6e5, 1.0),
        ("yarn", 1.6e5, 1.0),
        ("default", 1e4, None),
    ]
    kinds = ["sliding_attention", "compressed_sparse_attention"]
    assert thetas(sized("deepseek_v4", 2, layer_types=kinds, **keys)) == [1e4, 1.6e5]
    assert thetas(sized("deepseek_v4", 2, **keys)) == [1.6e5] * 2
    with pytest.raises(DocumentError, match="#/compress_ratios/0: an unknown kind"):
        reading(sized("deepseek_v4", 2, compress_ratios=[8, 4], **keys))


def test_deepseek_v4_nested_blocks() -> None:
    nested = {
        "main": {"rope_type": "default", "rope_theta": 2e4, "partial_rotary_factor": 0.125},
        "compress": {"rope_type": "default", "rope_theta": 3e5, "partial_rotary_factor": 0.125},
    }
    kinds = ["sliding_attention", "compressed_sparse_attention"]
    value = sized("deepseek_v4", 2, head_dim=512, layer_types=kinds, rope_parameters=nested)
    found = layers(value)
    assert [rope and (rope.theta, rope.rotary_dim) for rope in found] == [(2e4, 64), (3e5, 64)]


def test_step_lists_per_layer() -> None:
    # stepfun-ai/Step-3.5-Flash: lists go on for a layer that predicts ahead.
    value = sized(
        "step3p5",
        3,
        rope_theta=[5e6, 1e4, 5e6, 1e4],
        partial_rotary_factors=[0.5, 1.0, 0.5, 1.0],
        layer_types=["full_attention", "sliding_attention", "full_attention", "full_attention"],
        yarn_only_types=["full_attention"],
        rope_scaling={
            "rope_type": "llama3",
            "factor": 2.0,
            "original_max_position_embeddings": 131072,
            "low_freq_factor": 1.0,
            "high_freq_factor": 32.0,
        },
    )
    found = reading(value)
    assert [rope and (rope.type, rope.theta, rope.rotary_dim) for rope in found.layers] == [
        ("llama3", 5e6, 32),
        ("default", 1e4, 64),
        ("llama3", 5e6, 32),
    ]
    assert str(found.layer_sources[1]["theta"]) == f"{FILE}#/rope_theta/1"
    value["rope_theta"] = [5e6, 1e4]
    with pytest.raises(DocumentError, match="#/rope_theta: a list of the wrong length"):
        reading(value)


def test_mimo_v2_layers() -> None:
    value = sized("mimo_v2_flash", 7, head_dim=192, rope_theta=5e6, swa_rope_theta=2e4)
    assert thetas(value) == [5e6] + [2e4] * 4 + [5e6, 2e4]
    value["hybrid_layer_pattern"] = [1, 0, 0, 0, 0, 0, 0]
    assert thetas(value) == [2e4] + [5e6] * 6


def test_layers_without_attention() -> None:
    assert still(sized("lfm2", 3, full_attn_idxs=[1])) == [0, 2]
    assert still(sized("lfm2", 2, layer_types=["conv", "full_attention"])) == [0]
    assert still(sized("qwen3_next", 4)) == [0, 1, 2]
    assert still(sized("bamba", 3, attn_layer_indices=[2])) == [0, 1]
    assert still(sized("mllama_text_model", 3, cross_attention_layers=[1])) == [1]
    with pytest.raises(DocumentError, match="#/cross_attention_layers: this key is missing"):
        reading(sized("mllama_text_model", 3))
    with pytest.raises(DocumentError, match="#/full_attn_idxs/0: an integer out of range"):
        reading(sized("lfm2", 3, full_attn_idxs=[3]))


def test_granite_hybrid_rotates_by_its_embedding_type() -> None:
    kinds = ["mamba", "attention"]
    assert still(sized("granitemoehybrid", 2, layer_types=kinds)) == [0, 1]
    value = sized("granitemoehybrid", 2, layer_types=kinds, position_embedding_type="rope")
    assert still(value) == [0]
    value["position_embedding_type"] = "alibi"
    with pytest.raises(DocumentError, match="#/position_embedding_type: "):
        reading(value)


def test_layers_that_a_search_left_without_attention() -> None:
    # nvidia/Llama-3_3-Nemotron-Super-49B-v1's block_configs.
    blocks = [
        {"attention": {"n_heads_in_group": 8, "no_op": False, "replace_with_linear": False}},
        {"attention": {"n_heads_in_group": None, "no_op": True, "replace_with_linear": False}},
    ]
    assert still(sized("nemotron-nas", 2, block_configs=blocks)) == [1]


def test_alibi_families() -> None:
    assert still(config("mpt", rope_theta=10000)) == [0, 1]
    assert still(sized("baichuan", 2, hidden_size=5120, num_attention_heads=40)) == [0, 1]
    assert still(config("falcon", alibi=True)) == [0, 1]
    assert still(config("falcon", alibi=False)) == []


def test_families_that_rotate_nothing_may_carry_any_key() -> None:
    value = config("nemotron_h", partial_rotary_factor=0.3, rope_scaling={"what": 1})
    assert still(value) == [0, 1]


def test_an_unknown_family_with_rope_keys_is_read_as_llama() -> None:
    found = reading(config("brand_new", partial_rotary_factor=0.5))
    assert [rope and rope.rotary_dim for rope in found.layers] == [32, 32]
    assert found.pair_layout == "half-split"
    assert not found.family_known


def test_an_unknown_family_without_rope_keys_declares_nothing() -> None:
    found = reading(config("brand_new", rope_theta=..., rope_scaling=None))
    assert found.declared is None
    assert found.layers == ()
    assert found.dimensions.value("num_hidden_layers") == 2
    assert "declares no schedule" in found.notes[0]


def test_a_known_family_without_rope_keys_means_its_defaults() -> None:
    assert thetas(sized("mixtral", 2)) == [1e6] * 2


@pytest.mark.parametrize(
    ("key", "value"),
    [("sliding_window_pattern", 2), ("hybrid_layer_pattern", [0, 1]), ("block_types", ["a"])],
)
def test_an_unknown_family_whose_layers_may_differ_is_refused(key: str, value: object) -> None:
    with pytest.raises(DocumentError, match=f"#/{key}: this key bears on position"):
        reading(config("brand_new", **{key: value}))


def test_layers_of_several_kinds_in_an_unknown_family() -> None:
    kinds = ["sliding_attention", "full_attention"]
    value = config("brand_new", layer_types=kinds)
    with pytest.raises(DocumentError, match="#/layer_types/1: layers of several kinds"):
        reading(value)
    nested = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        "full_attention": None,
    }
    assert thetas(value | {"rope_parameters": nested}) == [1e4, None]


def test_interleaving_that_a_key_turns_off() -> None:
    keys = {"qk_rope_head_dim": 64, "qk_nope_head_dim": 128}
    assert reading(config("deepseek_v3", **keys)).pair_layout == "de-interleaved"
    found = reading(config("deepseek_v3", rope_interleave=False, **keys))
    assert found.pair_layout == "half-split"
    assert [rope and rope.interleaved for rope in found.layers] == [False, False]


def test_latent_attention_rotates_a_slice() -> None:
    value = config("deepseek_v2", head_dim=..., qk_rope_head_dim=32, qk_nope_head_dim=64)
    assert [rope and (rope.head_dim, rope.rotary_dim) for rope in layers(value)] == [(32, 32)] * 2
    # Mistral 4 states the same slice as a part of the whole head as well.
    value["rope_scaling"] = {"rope_type": "default", "partial_rotary_factor": 1 / 3}
    assert [rope and rope.rotary_dim for rope in layers(value)] == [32, 32]
    value["rope_scaling"] = {"rope_type": "default", "partial_rotary_factor": 0.5}
    with pytest.raises(DocumentError, match="partial_rotary_factor: contradicts /qk_rope_head_dim"):
        reading(value)
    with pytest.raises(DocumentError, match="#/qk_rope_head_dim: this key is missing"):
        reading(config("deepseek_v2"))


def test_chatglm_ratio_multiplies_the_base() -> None:
    value = config("chatglm", rope_theta=..., rope_ratio=50, kv_channels=64)
    found = reading(value)
    assert [rope and (rope.theta, rope.rotary_dim) for rope in found.layers] == [(5e5, 32)] * 2
    assert str(found.layer_sources[0]["theta"]) == f"{FILE}#/rope_ratio"


@pytest.mark.parametrize("key", ["rotary_emb_base", "rope_embedding_base", "rope_base"])
def test_other_spellings_of_theta(key: str) -> None:
    assert thetas(config(rope_theta=..., **{key: 2e5})) == [2e5] * 2


def test_theta_in_the_block_counts_before_the_top() -> None:
    found = reading(config(rope_parameters={"rope_type": "default", "rope_theta": 1e6}))
    assert [rope and rope.theta for rope in found.layers] == [1e6] * 2
    (note,) = found.notes
    assert "/rope_theta says 500000.0" in note


def test_original_length_beside_a_flat_block_counts_before_the_one_within() -> None:
    key = "original_max_position_embeddings"
    block = {"type": "yarn", "factor": 4.0, key: 8192}
    found = reading(config("phi3", rope_scaling=block, **{key: 4096}))
    assert {rope and rope.original_max_position_embeddings for rope in found.layers} == {4096}
    assert any(key in note for note in found.notes)


def test_original_length_falls_back_to_the_maximum_with_a_note() -> None:
    found = reading(config(rope_scaling={"type": "yarn", "factor": 4.0}))
    assert {rope and rope.original_max_position_embeddings for rope in found.layers} == {32768}
    assert any("stands for it" in note for note in found.notes)


def test_a_family_may_have_a_block_by_default() -> None:
    found = reading(sized("gpt_oss", 2))
    assert {rope and (rope.type, rope.factor, rope.truncate) for rope in found.layers} == {
        ("yarn", 32.0, False)
    }
    assert any("gpt_oss stands" in note for note in found.notes)
