"""The dynamic helper of InternLM2 and InternLM3."""

from __future__ import annotations

import math
from dataclasses import replace
from importlib.util import find_spec

import ml_dtypes
import numpy as np
import pytest
from samples import PLAIN, SAMPLES

from packimport.errors import ScheduleError
from packimport.rope.dynamic import DynamicRope
from packimport.rope.frequencies import frequencies
from packimport.rope.schedule import Rope
from packimport.rope.tables import table

INTERNLM3 = SAMPLES["dynamic"]
# internlm2-chat-7b: theta 1000000, head 128; its class also takes a linear factor.
INTERNLM2 = Rope(
    type="default", theta=1000000, head_dim=128, rotary_dim=128, max_position_embeddings=32768
)
LINEAR = replace(INTERNLM2, type="linear", factor=4.0)


@pytest.mark.parametrize(
    ("rope", "scale"),
    [(INTERNLM3, 1.0), (INTERNLM2, 1.0), (LINEAR, 0.25)],
    ids=lambda x: str(x)[:18],
)
def test_position_scale(rope: Rope, scale: float) -> None:
    assert DynamicRope(rope).position_scale == scale


@pytest.mark.parametrize(
    ("seq_len", "base"),
    [
        # transformers 5.24.0, `_compute_dynamic_ntk_parameters`, float64.
        (1, 50000000.0),
        (100, 50000000.0),
        (32768, 50000000.0),
        (40000, 117777118.66283214),
        (65536, 360979300.4325469),
    ],
)
def test_base_for_internlm3(seq_len: int, base: float) -> None:
    assert DynamicRope(INTERNLM3).base_for(seq_len) == pytest.approx(base, rel=1e-15)


@pytest.mark.parametrize("rope", [INTERNLM2, LINEAR], ids=["default", "linear"])
def test_base_of_other_types_does_not_grow(rope: Rope) -> None:
    assert DynamicRope(rope).base_for(1000000) == 1000000


def angle_at(rope: Rope, position: int, pair: int, seq_len: int) -> float:
    """By how much `apply` turns a unit vector of one pair."""
    x = np.zeros((1, rope.head_dim), np.float32)
    x[0, pair] = 1
    turned = DynamicRope(rope).apply(x, position, seq_len)[0]
    return math.atan2(turned[pair + rope.pairs], turned[pair])


def test_positions_are_not_scaled_as_well() -> None:
    # InternLM3 at position 7, entry 64 of 128, which is pair 32: 7 * 50000000^(-64/128).
    found = angle_at(INTERNLM3, 7, 32, 8)
    assert found == pytest.approx(7 / math.sqrt(50000000), rel=1e-6)
    assert found == pytest.approx(9.899e-4, rel=1e-4)
    assert found != pytest.approx(1.980e-3, rel=1e-1)


@pytest.mark.parametrize("rope", [INTERNLM3, INTERNLM2, LINEAR], ids=lambda r: r.type)
@pytest.mark.parametrize("seq_len", [100, 32768, 40000, 65536])
def test_scale_and_base_are_all_there_is(rope: Rope, seq_len: int) -> None:
    # The table of scaled positions and a plain base is that of `frequencies`, to float32.
    helper = DynamicRope(rope)
    exponents = np.arange(0, 128, 2) / 128
    plain = helper.base_for(seq_len) ** -exponents
    expected = frequencies(rope, seq_len).inv_freq
    assert plain * helper.position_scale == pytest.approx(expected, rel=2e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
@pytest.mark.parametrize(
    "changes", [{}, {"interleaved": True}, {"head_dim": 160, "trailing": True}]
)
def test_apply_turns_each_pair(dtype: type, changes: dict[str, object]) -> None:
    rope = replace(INTERNLM3, **changes)
    x = np.random.default_rng(1).standard_normal((2, 5, rope.head_dim)).astype(dtype)
    found = DynamicRope(rope).apply(x, 39995, 40000)
    assert found.dtype == dtype
    start = rope.head_dim - 128 if rope.trailing else 0
    first, second = (
        (slice(start, start + 128, 2), slice(start + 1, start + 128, 2))
        if rope.interleaved
        else (slice(start, start + 64), slice(start + 64, start + 128))
    )
    # The rotation as a product of complex numbers.
    turns = table(rope, 5, start=39995, seq_len=40000)
    before = x[..., first].astype(np.float64) + 1j * x[..., second].astype(np.float64)
    after = before * (turns.cos + 1j * turns.sin)
    size = 4 * float(ml_dtypes.finfo(dtype).eps) + 1e-6
    assert found[..., first].astype(np.float64) == pytest.approx(after.real, abs=size)
    assert found[..., second].astype(np.float64) == pytest.approx(after.imag, abs=size)
    assert np.array_equal(found[..., :start], x[..., :start])


def test_heads_after_the_tokens() -> None:
    x = np.random.default_rng(2).standard_normal((3, 7, 4, 128)).astype(np.float32)
    helper = DynamicRope(INTERNLM3)
    found = helper.apply(x, 10, 40, seq_axis=-3)
    before = helper.apply(x.swapaxes(1, 2), 10, 40)
    assert np.array_equal(found, before.swapaxes(1, 2))


def test_decoding_agrees_with_prefill() -> None:
    x = np.random.default_rng(3).standard_normal((9, 128)).astype(np.float32)
    helper = DynamicRope(INTERNLM3)
    whole = helper.apply(x, 0, 9)
    steps = [helper.apply(x[i : i + 1], i, i + 1) for i in range(9)]
    assert np.array_equal(whole, np.concatenate(steps))


def logits(helper: DynamicRope, tokens: np.ndarray) -> np.ndarray:
    """A model of two layers of causal attention with random weights: [tokens, vocabulary]."""
    chance = np.random.default_rng(7)
    width, vocabulary = helper.rope.head_dim, 50
    embed, read = (chance.standard_normal((vocabulary, width)) for _ in range(2))
    x = embed[tokens]
    for _ in range(2):
        wq, wk, wv = (chance.standard_normal((width, width)) / width**0.5 for _ in range(3))
        q, k = (helper.apply(x @ w, 0, len(tokens)) for w in (wq, wk))
        score = np.where(np.tri(len(tokens), dtype=bool), q @ k.T / width**0.5, -np.inf)
        weight = np.exp(score - score.max(axis=1, keepdims=True))
        x = x + (weight / weight.sum(axis=1, keepdims=True)) @ (x @ wv)
    return x @ read.T


SHORT = replace(INTERNLM3, head_dim=16, rotary_dim=16, theta=10000.0, max_position_embeddings=64)


@pytest.mark.parametrize("prefix", [1, 16, 40, 63])
@pytest.mark.parametrize(
    "rope",
    [SHORT, replace(SHORT, type="linear"), replace(SHORT, type="default", factor=None)],
    ids=lambda r: r.type,
)
def test_appended_tokens_do_not_change_the_prefix(rope: Rope, prefix: int) -> None:
    helper = DynamicRope(rope)
    tokens = np.random.default_rng(8).integers(0, 50, 64)
    alone, followed = logits(helper, tokens[:prefix]), logits(helper, tokens)
    # The matrix products of numpy may add in another order for another shape.
    assert followed[:prefix] == pytest.approx(alone, abs=1e-12)


def test_beyond_the_longest_length_the_prefix_does_change() -> None:
    # What the causality test would see if the base were not clamped.
    tokens = np.random.default_rng(8).integers(0, 50, 80)
    helper = DynamicRope(SHORT)
    change = np.abs(logits(helper, tokens)[:64] - logits(helper, tokens[:64])).max()
    assert change > 0.01
    linear = DynamicRope(replace(SHORT, type="linear"))
    change = np.abs(logits(linear, tokens)[:64] - logits(linear, tokens[:64])).max()
    assert change < 1e-12


@pytest.mark.parametrize(
    ("rope", "key"),
    [
        (SAMPLES["llama3"], "type"),
        (SAMPLES["yarn"], "type"),
        (SAMPLES["longrope"], "type"),
        (SAMPLES["proportional"], "type"),
        (replace(PLAIN, type="ntk"), "type"),
        (replace(INTERNLM3, factor=None), "factor"),
        (replace(LINEAR, factor=None), "factor"),
        (replace(INTERNLM3, max_position_embeddings=None), "max_position_embeddings"),
    ],
)
def test_ropes_that_are_refused(rope: Rope, key: str) -> None:
    with pytest.raises(ScheduleError) as error:
        DynamicRope(rope)
    assert error.value.key == key


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        ({"offset": 0, "seq_len": 4}, "seq_len"),
        ({"offset": 96, "seq_len": 100}, "seq_len"),
        ({"offset": 0, "seq_len": 0}, "seq_len"),
        ({"offset": -1, "seq_len": 10}, "offset"),
        ({"offset": 0.5, "seq_len": 10}, "offset"),
        ({"offset": 0, "seq_len": 10, "seq_axis": -1}, "seq_axis"),
        ({"offset": 0, "seq_len": 10, "seq_axis": -3}, "seq_axis"),
        ({"offset": 0, "seq_len": 10, "seq_axis": 0}, "seq_axis"),
    ],
)
def test_arguments_of_apply(arguments: dict[str, int], key: str) -> None:
    with pytest.raises(ScheduleError) as error:
        DynamicRope(INTERNLM3).apply(np.zeros((5, 128), np.float32), **arguments)
    assert error.value.key == key


@pytest.mark.oracle
@pytest.mark.skipif(not find_spec("transformers"), reason="needs the extra `oracle`")
@pytest.mark.filterwarnings("ignore")  # torch and transformers warn of their own ways
@pytest.mark.parametrize("seq_len", [100, 32768, 40000])
def test_as_a_model_of_transformers_rotates(seq_len: int) -> None:
    # transformers 5.24.0 has no InternLM model; its Llama takes the same dynamic schedule.
    import torch
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    block = {"rope_type": "dynamic", "rope_theta": 50000000, "factor": 6.0}
    config = LlamaConfig(
        hidden_size=256,
        num_attention_heads=2,
        head_dim=128,
        max_position_embeddings=32768,
        rope_parameters=block,
    )
    x = torch.randn(1, 2, 6, 128, generator=torch.Generator().manual_seed(4))
    positions = torch.arange(seq_len - 6, seq_len)[None]
    cos, sin = LlamaRotaryEmbedding(config)(x, positions)
    expected, _ = apply_rotary_pos_emb(x, x, cos, sin)
    found = DynamicRope(INTERNLM3).apply(x.numpy(), seq_len - 6, seq_len)
    # Two ulps of a frequency at position 40000, times a coordinate of up to 4.
    assert np.abs(found - expected.numpy()).max() < 40000 * 2**-21 * 4
