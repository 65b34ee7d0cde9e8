"""Families, layers and tables against the live transformers 5.24.0 (extra `oracle`)."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from little_configs import reading

from packimport.pack.documents import Document
from packimport.rope.frequencies import frequencies
from packimport.rope.schedule import Rope
from packimport.semantics.families import family_of, knowledge
from packimport.semantics.models import known_models, model_config

pytestmark = pytest.mark.oracle
transformers = pytest.importorskip("transformers", minversion="5.24.0")
torch = pytest.importorskip("torch")

FAMILIES = knowledge().require("families").fields()
ORACLE = Path(__file__).parent / "transformers_tables.py"
ROWS = {
    row["model"]: row["config"]
    for row in json.loads(
        (Path(__file__).parent.parent / "data" / "rope_configs.json").read_text(encoding="utf-8")
    )
}
# No class, no modeling, no module of tables in transformers 5.24.0, or an incomplete row.
MODELS_WITHOUT_CLASS = {
    "baichuan-inc/Baichuan2-7B-Chat",
    "EleutherAI/gpt-j-6b",
    "internlm/internlm2_5-7b-chat",
    "internlm/internlm2-chat-7b",
    "internlm/internlm3-8b-instruct",
    "MiniMaxAI/MiniMax-M3",
    "moonshotai/Kimi-K2-Instruct",
    "moonshotai/Kimi-K3",
    "nvidia/Nemotron-H-56B-Base-8K",
    "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "tencent/Hunyuan-A13B-Instruct",
    "THUDM/chatglm3-6b",
    "XiaomiMiMo/MiMo-7B-Base",
}
ROWS_WITHOUT_CLASS = (MODELS_WITHOUT_CLASS & set(ROWS)) | {
    "baichuan-inc/Baichuan2-7B",
    "CohereLabs/tiny-aya-global",
    "microsoft/phi-2 (old phi-msft format)",
    "microsoft/Phi-3.5-MoE-instruct",
    "nvidia/Llama-3_3-Nemotron-Super-49B-v1",
    "Qwen/Qwen-1_8B-Chat (Qwen1)",
    "tencent/HunyuanOCR (text)",
}
SIZES = (
    "hidden_size", "num_attention_heads", "num_key_value_heads", "num_hidden_layers",
    "max_position_embeddings", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim",
    "n_embd", "n_head", "n_layer", "n_positions", "sliding_window", "rotary_dim",
    "cross_attention_layers",
)  # fmt: skip
# A llama3 block that serves the full-attention layers alone, and lists with an entry per layer.
STEP: dict[str, Any] = {
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
    config = config_class(name)(**keys)
    if name == "minimax_m3_vl_text":
        # The class does not read rotary_dim, which its checkpoints state beside the part.
        part = config.rotary_dim / config.head_dim
        config.rope_parameters = {**config.rope_parameters, "partial_rotary_factor": part}
    return config


def as_json(config: Any) -> dict[str, Any]:
    return json.loads(config.to_json_string(use_diff=False))


def silent(config: Any) -> dict[str, Any]:
    """The sizes of a config, and nothing that states a schedule."""
    value = as_json(config)
    sizes = {key: value[key] for key in SIZES if value.get(key) is not None}
    if config.model_type in NAMELESS:
        sizes["head_dim"] = NAMELESS[config.model_type]
    if config.model_type == "minimax_m3_vl_text":
        part = config.rope_parameters["partial_rotary_factor"]  # its rotary_dim alone is refused
        sizes["partial_rotary_factor"] = part
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


# Their code is published with the checkpoints, or holds several modules of tables.
WITHOUT_MODULE = ("exaone", "internlm3", "qwen2_5_omni_text")
TABLED = [name for name in ROTATING if name not in (*NAMELESS, *WITHOUT_TABLE)]


def requests() -> dict[str, dict[str, Any]]:
    """The configs whose tables transformers is asked for: of classes, of rows, of known models."""
    configs: dict[str, dict[str, Any]] = {"step3p5": {"model_type": "step3p5", **STEP}}
    for name in TABLED:
        configs[f"class {name}"] = {"model_type": name}
        if name == "minimax_m3_vl_text":
            configs[f"class {name}"]["rope_parameters"] = made(name).rope_parameters
    configs |= {f"row {name}": config for name, config in ROWS.items()}
    return configs | {f"known {name}": known(name) for name in known_models()}


def known(name: str) -> dict[str, Any]:
    value = model_config(name).value
    assert isinstance(value, dict)
    return value


@pytest.fixture(scope="module")
def live() -> dict[str, Any]:
    """What transformers answers to each request, on torch's default kernels."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", str(ORACLE)],
        input=json.dumps(requests()),
        capture_output=True,
        check=False,
        text=True,
        env={**os.environ, "ATEN_CPU_CAPABILITY": "default"},
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answers: dict[str, Any] = json.loads(done.stdout)
    return answers


def check_tables(ropes: set[Rope], tables: dict[str, Any]) -> None:
    """Each schedule is one of the tables, bit for bit, with its attention factor."""
    assert ropes
    for rope in ropes:
        found = frequencies(rope)
        same = [table for table in tables.values() if has_bits(found.inv_freq, table["inv_freq"])]
        assert same, f"{found.inv_freq[:3]}... of {rope.pairs} pairs is none of {list(tables)}"
        factors = {table["attention_factor"] for table in same} - {None}
        assert not factors or min(abs(f - found.attention_factor) for f in factors) <= 1e-12


def has_bits(inv_freq: Any, expected: list[str]) -> bool:
    values = np.array([float.fromhex(x) for x in expected], np.float32)
    return bool(np.array_equal(inv_freq.view(np.int32), values.view(np.int32)))


@pytest.mark.parametrize("name", TABLED)
def test_frequencies_are_those_of_the_class(live: dict[str, Any], name: str) -> None:
    config = made(name)
    tables = live[f"class {name}"]
    if isinstance(tables, str):
        assert name in WITHOUT_MODULE, tables
    elif ropes := distinct(as_json(config)):
        check_tables(ropes, tables)
    else:
        assert name in ("bamba", "granitemoehybrid")  # they rotate nothing by default


@pytest.mark.parametrize("name", sorted(set(ROWS) - ROWS_WITHOUT_CLASS))
def test_frequencies_of_each_published_config(live: dict[str, Any], name: str) -> None:
    check_tables(distinct(ROWS[name]), live[f"row {name}"])


@pytest.mark.parametrize("name", sorted(set(known_models()) - MODELS_WITHOUT_CLASS))
def test_frequencies_of_each_known_model(live: dict[str, Any], name: str) -> None:
    check_tables(distinct(known(name)), live[f"known {name}"])


def test_what_has_no_class_is_what_we_say(live: dict[str, Any]) -> None:
    without = {name for name, tables in live.items() if isinstance(tables, str)}
    assert {n.removeprefix("row ") for n in without if n.startswith("row ")} == ROWS_WITHOUT_CLASS
    models = {n.removeprefix("known ") for n in without if n.startswith("known ")}
    assert models == MODELS_WITHOUT_CLASS


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


def test_step_layers(live: dict[str, Any]) -> None:
    config = made("step3p5", **json.loads(json.dumps(STEP)))
    layers = reading({**silent(config), **STEP}).layers
    assert layers == reading(as_json(config)).layers
    for rope, kind in zip(layers, config.layer_types, strict=True):
        assert rope is not None
        check_tables({rope}, {kind: live["step3p5"][f"{kind}_inv_freq"]})


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


def phi3(**keys: object) -> dict[str, Any]:
    lists = {
        "short_factor": [1.0 + i / 10 for i in range(8)],
        "long_factor": [2.0 + i for i in range(8)],
    }
    return {
        "model_type": "phi3", "hidden_size": 64, "num_attention_heads": 4,
        "num_key_value_heads": 4, "num_hidden_layers": 2, "max_position_embeddings": 131072,
        "rope_theta": 10000.0, "rope_scaling": {"type": "longrope", **lists}, **keys,
    }  # fmt: skip


@pytest.mark.parametrize("name", ["phi3", "phi4_multimodal"])
@pytest.mark.parametrize("beside", [None, 8192])
@pytest.mark.parametrize("inside", [None, 16384])
def test_the_original_length_of_phi3(name: str, beside: int | None, inside: int | None) -> None:
    """Its class has the key beside the block, 4096 where a config leaves it out."""
    value = phi3(model_type=name)
    if beside is not None:
        value["original_max_position_embeddings"] = beside
    if inside is not None:
        value["rope_scaling"]["original_max_position_embeddings"] = inside
    config = config_class(name).from_dict(json.loads(json.dumps(value)))
    table = rotary(modeling(name), config)
    (rope,) = distinct(value)
    key = "original_max_position_embeddings"
    assert rope.original_max_position_embeddings == config.rope_parameters[key]
    assert abs(frequencies(rope).attention_factor - table.attention_scaling) < 1e-12
    notes = reading(value).notes
    assert any(key in note for note in notes) == (inside is not None)
