"""Families and layers against the live transformers 5.24.0 (extra `oracle`)."""

from __future__ import annotations

import importlib
import inspect
import json
from functools import cache
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from little_configs import reading

from packimport.pack.documents import Document
from packimport.rope.frequencies import frequencies
from packimport.rope.schedule import Rope
from packimport.semantics.families import family_of, knowledge

pytestmark = pytest.mark.oracle
transformers = pytest.importorskip("transformers", minversion="5.24.0")
torch = pytest.importorskip("torch")

FAMILIES = knowledge().require("families").fields()
SIZES = (
    "hidden_size", "num_attention_heads", "num_key_value_heads", "num_hidden_layers",
    "max_position_embeddings", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim",
    "n_embd", "n_head", "n_layer", "n_positions", "sliding_window", "rotary_dim",
    "cross_attention_layers",
)  # fmt: skip
# Classes whose sizes don't divide, so that a config of sizes alone names no head size.
NAMELESS = {"glm4_moe": 128, "glm4v_moe_text": 128, "qwen3_omni_moe_text": 128}


@cache
def config_class(name: str) -> Any:
    """The config class of a family; None where transformers has none or it nests a text model."""
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    entry = FAMILIES[name]
    if entry.has("text") or entry.has("unsupported"):
        return None
    try:
        found = CONFIG_MAPPING[name]
    except KeyError:
        return None
    return None if "text_config" in getattr(found, "sub_configs", {}) else found


def has(name: str, *fields: str) -> bool:
    """Whether a family, or one that it is like, has any of these fields."""
    entry = FAMILIES[name]
    return any(entry.has(f) for f in fields) or (
        entry.has("like") and has(entry.require("like").text(), *fields)
    )


def rotates(name: str) -> bool:
    if config_class(name) is None or has(name, "variants"):
        return config_class(name) is not None
    return not family_of(Document("x", {"model_type": name})).still


ROTATING = [name for name in sorted(FAMILIES) if rotates(name)]
# Their classes keep the table in each attention, not in a module of its own.
WITHOUT_TABLE = ("codegen", "gptj")


def made(name: str, **keys: object) -> Any:
    """A config of the family's class."""
    return config_class(name)(**keys)


def as_json(config: Any) -> dict[str, Any]:
    return json.loads(config.to_json_string(use_diff=False))


def silent(config: Any) -> dict[str, Any]:
    """The sizes of a config, and nothing that states a schedule."""
    value = as_json(config)
    sizes = {key: value[key] for key in SIZES if value.get(key) is not None}
    if config.model_type in NAMELESS:
        sizes["head_dim"] = NAMELESS[config.model_type]
    return {"model_type": config.model_type, **sizes}


def distinct(value: dict[str, Any]) -> set[Rope]:
    return {rope for rope in reading(value).layers if rope is not None}


def blocks(config: Any) -> list[dict[str, Any]]:
    """The rope_parameters of each kind of layer."""
    parameters = config.rope_parameters
    nested = [v for v in parameters.values() if isinstance(v, dict)]
    return nested or [parameters]


@pytest.mark.parametrize("name", [n for n in ROTATING if n not in WITHOUT_TABLE])
def test_defaults_are_those_of_the_class(name: str) -> None:
    config = made(name)
    if config.rope_parameters is None or name in ("granitemoehybrid", "bamba"):
        pytest.skip("rotates nothing by default")
    found = {(rope.type, rope.theta) for rope in distinct(silent(config))}
    kinds = {(block["rope_type"], float(block["rope_theta"])) for block in blocks(config)}
    # A default may be of a kind that no layer has, such as DeepSeek V4's `main`.
    assert found
    assert found <= kinds
    assert len(found) == len(kinds) or name == "deepseek_v4"


@pytest.mark.parametrize("name", ROTATING)
def test_a_saved_config_says_what_a_silent_one_means(name: str) -> None:
    config = made(name)
    if name in NAMELESS:
        config.head_dim = NAMELESS[name]
    saved, quiet = reading(as_json(config)), reading(silent(config))
    assert saved.layers == quiet.layers
    assert saved.pair_layout == quiet.pair_layout


def rotary(module: ModuleType, config: Any) -> Any:
    """The module of a family that makes its tables; None where it has none of that form."""
    classes = [
        value
        for name, value in inspect.getmembers(module, inspect.isclass)
        if name.endswith("RotaryEmbedding") and "Vision" not in name and "Audio" not in name
    ]
    return classes[0](config) if len(classes) == 1 else None


def modeling(name: str) -> ModuleType:
    module = config_class(name).__module__.replace(".configuration_", ".modeling_")
    return importlib.import_module(module)


@pytest.mark.parametrize("name", [n for n in ROTATING if n not in (*NAMELESS, *WITHOUT_TABLE)])
def test_frequencies_are_those_of_the_class(name: str) -> None:
    config = made(name)
    if name == "minimax_m3_vl_text":
        # The class ignores rotary_dim, which its checkpoints state beside the part.
        config.rope_parameters["partial_rotary_factor"] = config.rotary_dim / config.head_dim
    layers = rotary(modeling(name), config) if modeling_exists(name) else None
    ropes = distinct(as_json(config))
    if layers is None or not ropes:
        pytest.skip("no table of its own")
    buffers = {
        key: value.numpy()
        for key, value in layers.named_buffers()
        if key.endswith("inv_freq") and "original" not in key
    }
    for rope in ropes:
        own = frequencies(rope).inv_freq
        assert any(np.array_equal(own, table) for table in buffers.values()), describe_miss(
            own, buffers
        )


def describe_miss(own: Any, buffers: dict[str, Any]) -> str:
    return f"{own[:3]}... of {len(own)} is none of { ({k: v[:3] for k, v in buffers.items()}) }"


def modeling_exists(name: str) -> bool:
    try:
        modeling(name)
    except ImportError:
        return False
    return True


def still(value: dict[str, Any]) -> set[int]:
    return {i for i, rope in enumerate(reading(value).layers) if rope is None}


COUNTS = (1, 4, 6, 9, 12)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", ["gemma3_text", "gemma3n_text", "gemma4_text", "olmo3"])
def test_kinds_of_layers_by_pattern(name: str, count: int) -> None:
    keys = {"num_hidden_layers": count}
    if name == "gemma3n_text":
        # Its own lists have an entry per layer.
        keys |= {"num_kv_shared_layers": 0, "activation_sparsity_pattern": [0.0] * count}
    config = made(name, **keys)
    block = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 4096}
    value = silent(config)
    if name == "olmo3":
        value["rope_scaling"] = block
    layers = reading(value).layers
    full = {"olmo3": "yarn", "gemma4_text": "proportional"}.get(name)
    found = [
        "full_attention"
        if rope is not None and (rope.type == full if full else rope.theta == 1e6)
        else "sliding_attention"
        for rope in layers
    ]
    assert found == list(config.layer_types)


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize(
    ("name", "silent_kind"),
    [
        ("cohere2", "full_attention"),
        ("afmoe", "full_attention"),
        ("exaone4", "full_attention"),
        ("qwen3_next", "linear_attention"),
        ("qwen3_5_text", "linear_attention"),
    ],
)
def test_layers_without_rope_by_pattern(name: str, silent_kind: str, count: int) -> None:
    config = made(name, num_hidden_layers=count)
    expected = {i for i, kind in enumerate(config.layer_types) if kind == silent_kind}
    assert still(silent(config)) == expected
    assert still(as_json(config)) == expected


def test_exaone4_without_a_window() -> None:
    # As LGAI-EXAONE/EXAONE-4.0-1.2B: without a window, every layer rotates.
    kinds = ["full_attention"] * 4
    config = made("exaone4", num_hidden_layers=4, sliding_window=None, layer_types=kinds)
    source = inspect.getsource(modeling("exaone4").Exaone4Attention.forward)
    assert "if self.sliding_window is None or self.is_sliding" in source
    assert still(as_json(config)) == set()


@pytest.mark.parametrize("count", COUNTS)
@pytest.mark.parametrize("name", ["llama4_text", "smollm3"])
def test_no_rope_layers(name: str, count: int) -> None:
    config = made(name, num_hidden_layers=count)
    expected = {i for i, flag in enumerate(config.no_rope_layers) if not flag}
    assert still(silent(config)) == expected
    assert still(as_json(config)) == expected


def test_no_rope_layers_that_are_empty() -> None:
    config = made("llama4_text", num_hidden_layers=8, no_rope_layers=[])
    expected = {i for i, flag in enumerate(config.no_rope_layers) if not flag}
    assert still({**silent(config), "no_rope_layers": []}) == expected == {3, 7}
    # SmolLM3's class fails on it, and so do we.
    with pytest.raises(IndexError):
        made("smollm3", num_hidden_layers=8, no_rope_layers=[])


@pytest.mark.parametrize("ratios", [[0, 0, 4, 128, 4, 0], [128, 4, 0, 0], [0], [4]])
def test_deepseek_v4_layers(ratios: list[int]) -> None:
    config = made("deepseek_v4", num_hidden_layers=len(ratios), compress_ratios=ratios)
    main = {i for i, kind in enumerate(config.layer_types) if kind == "sliding_attention"}
    for value in ({**silent(config), "compress_ratios": ratios}, as_json(config)):
        layers = reading(value).layers
        assert {i for i, rope in enumerate(layers) if rope and rope.theta == 1e4} == main


def test_step_layers() -> None:
    keys: dict[str, Any] = {
        "num_hidden_layers": 4,
        "rope_theta": [5e6, 1e4, 1e4, 5e6],
        "partial_rotary_factors": [0.5, 1.0, 1.0, 0.5],
        "layer_types": [f"{kind}_attention" for kind in ("full", "sliding", "sliding", "full")],
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 2.0,
            "original_max_position_embeddings": 131072,
            "low_freq_factor": 1.0,
            "high_freq_factor": 32.0,
        },
    }
    config = made("step3p5", **{key: json.loads(json.dumps(value)) for key, value in keys.items()})
    table = rotary(modeling("step3p5"), config)
    layers = reading({**silent(config), **keys}).layers
    assert layers == reading(as_json(config)).layers
    for rope, kind in zip(layers, config.layer_types, strict=True):
        assert rope is not None
        expected = getattr(table, f"{kind}_inv_freq").numpy()
        np.testing.assert_array_equal(frequencies(rope).inv_freq, expected)


def turned(name: str, width: int) -> tuple[Any, Any] | None:
    """The rotating entries of a head before and after the family's own rotation at position 5."""
    module = modeling(name)
    function = getattr(module, "apply_rotary_pos_emb", None)
    parameters = [] if function is None else list(inspect.signature(function).parameters)
    if parameters[:4] != ["q", "k", "cos", "sin"] or "position_ids" in parameters[:5]:
        return None
    table = rotary(module, made(name))
    if table is None or name == "minimax_m3_vl_text":
        return None
    q = torch.randn(1, 1, 1, width, generator=torch.Generator().manual_seed(0))
    cos, sin = table(q, torch.tensor([[5]]))[:2]
    return q.numpy()[0, 0, 0], function(q, q, cos, sin)[0].numpy()[0, 0, 0]


UNIFORM = [
    name
    for name in ROTATING
    if name not in NAMELESS and not has(name, "schedules", "variants", "mrope", "latent")
]


@pytest.mark.parametrize("name", UNIFORM)
def test_pairs_lie_as_the_class_turns_them(name: str) -> None:
    if not modeling_exists(name):
        pytest.skip("no modeling of its own")
    found = reading(as_json(made(name)))
    rope = next(rope for rope in found.layers if rope is not None)
    both = turned(name, rope.rotary_dim)
    if both is None:
        pytest.skip("rotates by a function of another form")
    before, after = both
    known = frequencies(rope)
    angle = 5 * known.inv_freq
    cos, sin = np.cos(angle), np.sin(angle)
    slots = np.arange(rope.rotary_dim)
    half = rope.rotary_dim // 2
    first, second = (slots[::2], slots[1::2]) if rope.interleaved else (slots[:half], slots[half:])
    expected = np.empty_like(before)
    expected[first] = (before[first] * cos - before[second] * sin) * known.attention_factor
    expected[second] = (before[second] * cos + before[first] * sin) * known.attention_factor
    np.testing.assert_allclose(after, expected, atol=2e-5)


@pytest.mark.parametrize(
    "name",
    [
        name
        for name in ROTATING
        if reading(silent(made(name))).pair_layout == "de-interleaved" and modeling_exists(name)
    ],
)
def test_pairs_that_the_class_reorders_first(name: str) -> None:
    module = modeling(name)
    rope = next(iter(distinct(silent(made(name)))))
    q = torch.randn(1, 1, 1, rope.rotary_dim, generator=torch.Generator().manual_seed(0))
    known = frequencies(rope)
    angle = torch.from_numpy(5 * known.inv_freq)
    both = torch.cat([angle, angle])[None, None]
    after = module.apply_rotary_pos_emb_interleave(q, q, both.cos(), both.sin())[0].numpy().ravel()
    before, cos, sin = q.numpy().ravel(), np.cos(angle.numpy()), np.sin(angle.numpy())
    first, second = before[::2], before[1::2]
    expected = np.concatenate([first * cos - second * sin, second * cos + first * sin])
    np.testing.assert_allclose(after, expected, atol=2e-5)
