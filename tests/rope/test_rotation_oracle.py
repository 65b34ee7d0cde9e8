"""Rotations against the functions of transformers 5.24.0, run by torch 2.13.0 on the CPU.

Bound 0 where torch rounds each product and sum as we do, in float32 and
float64. Where a model rotates in float32 and rounds to bfloat16 at the end, as
DeepSeek V4 does, bound 0 there too.
"""

from __future__ import annotations

import importlib

import ml_dtypes
import numpy as np
import pytest

from packimport.rope.interleaving import rotate_deinterleaved
from packimport.rope.layouts import to_complex, to_duplicated, to_repeated
from packimport.rope.norm import rms_norm, rms_norm_rotate
from packimport.rope.rotation import rotate

pytestmark = pytest.mark.oracle
torch = pytest.importorskip("torch")
pytest.importorskip("transformers", minversion="5.24")

in_both_dtypes = pytest.mark.parametrize("dtype", [np.float32, np.float64])


def model(name: str):
    return importlib.import_module(f"transformers.models.{name}.modeling_{name}")


def drawn(dtype: type, head_dim: int, pairs: int):
    """q, k [2, 3, 5, head_dim] in [-2, 2]; cos, sin [2, 5, pairs]."""
    rng = np.random.default_rng(17)
    q, k = rng.uniform(-2, 2, (2, 2, 3, 5, head_dim)).astype(dtype)
    angles = rng.uniform(-4, 4, (2, 5, pairs))
    return q, k, np.cos(angles).astype(dtype), np.sin(angles).astype(dtype)


def tensors(*arrays: np.ndarray) -> list:
    """Torch tensors of the same values and dtypes; torch can't read ml_dtypes' bfloat16."""
    return [
        torch.from_numpy(array.astype(np.float32)).bfloat16()
        if array.dtype == ml_dtypes.bfloat16
        else torch.from_numpy(array)
        for array in arrays
    ]


def same(found: np.ndarray, expected) -> None:
    """Equal values; compared in float64, which holds each of the dtypes."""
    assert np.array_equal(found.astype(np.float64), expected.double().numpy())


@in_both_dtypes
@pytest.mark.parametrize(("name", "inverse"), [("llama", False), ("nanochat", True)])
def test_half_split_and_nanochats_other_direction(dtype, name, inverse) -> None:
    q, k, cos, sin = drawn(dtype, 16, 8)
    doubled = tensors(to_duplicated(cos), to_duplicated(sin))
    expected = model(name).apply_rotary_pos_emb(*tensors(q, k), *doubled)
    for x, y in zip((q, k), expected, strict=True):
        same(rotate(x, cos[:, None], sin[:, None], inverse=inverse), y)


def test_cohere_is_interleaved_and_repeats_each_value() -> None:
    """float32 only: the model rotates in float32 whatever it is given."""
    q, k, cos, sin = drawn(np.float32, 16, 8)
    doubled = tensors(to_repeated(cos), to_repeated(sin))
    expected = model("cohere").apply_rotary_pos_emb(*tensors(q, k), *doubled)
    for x, y in zip((q, k), expected, strict=True):
        same(rotate(x, cos[:, None], sin[:, None], interleaved=True), y)


def test_deepseek_v2_multiplies_complex_numbers() -> None:
    """float32, bound 1e-6: torch may fuse the products of a complex multiplication."""
    q, k, cos, sin = drawn(np.float32, 16, 8)
    (table,) = tensors(to_complex(cos, sin))
    expected = model("deepseek_v2").apply_rotary_emb(*tensors(q, k), table)
    for x, y in zip((q, k), expected, strict=True):
        found = rotate(x, cos[:, None], sin[:, None], interleaved=True)
        np.testing.assert_allclose(found, y.numpy(), rtol=0, atol=1e-6)


@in_both_dtypes
def test_deepseek_v3_sorts_pairs_apart(dtype) -> None:
    q, k, cos, sin = drawn(dtype, 16, 8)
    doubled = tensors(to_duplicated(cos), to_duplicated(sin))
    expected = model("deepseek_v3").apply_rotary_pos_emb_interleave(*tensors(q, k), *doubled)
    for x, y in zip((q, k), expected, strict=True):
        same(rotate_deinterleaved(x, cos[:, None], sin[:, None]), y)


class TestDeepseekV4:
    """Heads of 512 entries, the last 64 rotated in interleaved pairs."""

    @pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16])
    @pytest.mark.parametrize("inverse", [False, True])
    def test_rotation_of_the_end_there_and_back(self, dtype, inverse) -> None:
        q, _, cos, sin = drawn(dtype, 512, 32)
        x, c, s = tensors(q, cos, sin)
        expected = model("deepseek_v4").apply_rotary_pos_emb(x, c, -s if inverse else s)
        found = rotate(
            q, cos[:, None], sin[:, None], interleaved=True, trailing=True, inverse=inverse
        )
        same(found, expected)

    @pytest.mark.parametrize("weighted", [False, True])
    def test_norm(self, weighted) -> None:
        """float32, bound 1e-6: torch sums 512 squares in float32; results below 2."""
        q, _, _, _ = drawn(np.float32, 512, 32)
        weight = np.random.default_rng(18).uniform(-1, 1, 512).astype(np.float32)
        expected = self.normalised(q, weight if weighted else None)
        found = rms_norm(q, weight if weighted else None, epsilon=1e-6)
        np.testing.assert_allclose(found, expected.numpy(), rtol=0, atol=1e-6)

    @pytest.mark.parametrize(
        ("dtype", "bound"),
        [
            # As for the norm; a rotation adds (2 + 2 + 4)·2^-24 at most.
            (np.float32, 1.5e-6),
            # The model also rounds the norm: 2^-8 of an entry below 2, and without a
            # weight the factor, 2^-9 of it; times 1.42 by the rotation. Then each side
            # rounds a result below 4: 2^-7 twice.
            (ml_dtypes.bfloat16, 0.027),
        ],
    )
    @pytest.mark.parametrize("weighted", [False, True])
    def test_norm_then_rotation(self, dtype, bound, weighted) -> None:
        q, _, cos, sin = drawn(dtype, 512, 32)
        weight = np.random.default_rng(18).uniform(-1, 1, 512).astype(np.float32)
        normalised = self.normalised(q, weight if weighted else None)
        expected = model("deepseek_v4").apply_rotary_pos_emb(normalised, *tensors(cos, sin))
        found = rms_norm_rotate(
            q,
            weight if weighted else None,
            cos[:, None],
            sin[:, None],
            epsilon=1e-6,
            interleaved=True,
            trailing=True,
        )
        assert found.dtype == dtype
        np.testing.assert_allclose(
            found.astype(np.float64), expected.double().numpy(), rtol=0, atol=bound
        )

    @staticmethod
    def normalised(x: np.ndarray, weight: np.ndarray | None):
        module = model("deepseek_v4")
        (tensor,) = tensors(x)
        if weight is None:
            return module.DeepseekV4UnweightedRMSNorm(eps=1e-6)(tensor)
        norm = module.DeepseekV4RMSNorm(len(weight), eps=1e-6)
        with torch.no_grad():
            norm.weight.copy_(torch.from_numpy(weight))
            return norm(tensor)
