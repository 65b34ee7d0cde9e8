"""Seeded weights and tokens: the same bits under every numpy and on every machine."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest

from packimport.demo import model, pack, weights
from packimport.demo.reference import load_reference


def test_tokens_are_those_of_the_reference() -> None:
    assert np.array_equal(model.tokens(), load_reference().tokens)


def test_the_stream_is_that_of_pcg64() -> None:
    """The integers are numpy's own test vector: tests/data/pcg64-testset-1.csv, seed 0xdeadbeaf."""
    first = (0x60D24054E17A0698, 0xD5E79D89856E4F12, 0xD254972FE64BD782, 0xF1E3072A53C72571)
    assert tuple(int(word) for word in np.random.PCG64(0xDEADBEAF).random_raw(4)) == first
    top = np.array([word >> 40 for word in first], dtype=np.float64)
    assert np.array_equal(
        weights.uniform(0xDEADBEAF, (4,), 1 / math.sqrt(3)), (top / 2**23 - 1).astype(np.float32)
    )


def test_uniform_has_the_deviation_asked_for() -> None:
    values = weights.uniform(5, (100, 1000), 0.25)
    assert values.dtype == np.float32
    assert values.std() == pytest.approx(0.25, rel=0.01)
    assert values.mean() == pytest.approx(0.0, abs=0.005)


def test_no_two_weights_share_a_seed() -> None:
    leading = [value.ravel()[:64].tobytes() for value in weights.state_dict().values()]
    assert len({hashlib.sha256(head).digest() for head in leading}) == len(leading)


def test_the_packed_tensors_are_the_models() -> None:
    """`x @ packed` is transformers' `x @ weight.T`; q, k and v lie side by side."""
    state, packed = weights.state_dict(), pack.tensors()
    layer = "model.layers.1"
    joined = packed[f"{layer}.attn.qkv_proj.MatMul.weight"]
    width = model.HEADS * model.HEAD_DIM
    assert np.array_equal(joined[:, :width], state[f"{layer}.self_attn.q_proj.weight"].T)
    assert np.array_equal(joined[:, -64:], state[f"{layer}.self_attn.v_proj.weight"].T)
    count = sum(value.size for value in packed.values()) - 2 * model.MAX_POSITIONS * 16
    assert count == sum(value.size for value in state.values())
