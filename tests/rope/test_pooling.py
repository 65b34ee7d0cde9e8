"""The pooling of DeepSeek V4's compressor, against onnxruntime and the model's own modules.

Bounds, for kv in [-1, 1] and at most n tokens in a softmax:
float64, 1e-13: exp to 2 ulp and sums of n <= 64 terms in another order, n·2^-52.
float32, 1e-6: the same argument at worst gives n·2^-23; measured 4.2e-7 for the
    model's windows of 8 and 128 tokens.
Measured with onnxruntime 1.32, torch 2.13.0, transformers 5.24.0.
"""

from __future__ import annotations

from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.helper import make_node

from packimport.errors import ScheduleError
from packimport.rope.norm import rms_norm_rotate
from packimport.rope.pooling import pool, pool_overlapping, window_positions
from packimport.rope.rotation import rows_at

SHAPES = st.fixed_dictionaries(
    {
        "batch": st.integers(1, 3),
        "windows": st.integers(1, 5),
        "rate": st.integers(1, 8),
        "head_dim": st.integers(1, 6),
        "left_over": st.integers(0, 7),
    }
)
SEEDS = st.integers(0, 2**32 - 1)


def drawn(seed: int, shape: tuple[int, int, int], rate: int, dtype: type = np.float64):
    """kv [batch, seq, width] in [-1, 1]; gate alike and bias [rate, width] in [-4, 4]."""
    rng = np.random.default_rng(seed)
    kv = rng.uniform(-1, 1, shape).astype(dtype)
    gate = rng.uniform(-4, 4, shape).astype(dtype)
    return kv, gate, rng.uniform(-4, 4, (rate, shape[2])).astype(dtype)


def mean_nodes(kv: str, gate: str) -> list:
    return [
        make_node("Softmax", [gate], ["weights"], axis=2),
        make_node("Mul", [kv, "weights"], ["weighted"]),
        make_node("ReduceSum", ["weighted", "two"], ["y"], keepdims=0),
    ]


def pooled_by_graph(run_graph, kv, gate, bias):
    rate, width = bias.shape
    batch, windows = kv.shape[0], kv.shape[1] // rate
    nodes = [
        make_node("Reshape", ["kv", "shape"], ["kv_"]),
        make_node("Reshape", ["gate", "shape"], ["gate_"]),
        make_node("Add", ["gate_", "bias"], ["logits"]),
        *mean_nodes("kv_", "logits"),
    ]
    whole = windows * rate
    feeds = {
        "kv": kv[:, :whole],
        "gate": gate[:, :whole],
        "bias": bias,
        "shape": np.array([batch, windows, rate, width]),
        "two": np.array([2]),
    }
    return run_graph(nodes, feeds)


def pooled_overlapping_by_graph(run_graph, kv, gate, bias):
    """The first series moved on by one window, kv 0 and gate −inf in front."""
    rate, width = bias.shape
    batch, windows, head_dim = kv.shape[0], kv.shape[1] // rate, width // 2
    nodes = [
        make_node("Reshape", ["kv", "shape"], ["kv_"]),
        make_node("Reshape", ["gate", "shape"], ["gate_"]),
        make_node("Add", ["gate_", "bias"], ["logits_"]),
    ]
    for name in ("kv", "logits"):
        nodes += [
            make_node("Split", [f"{name}_"], [f"{name}_a", f"{name}_b"], axis=-1, num_outputs=2),
            make_node("Concat", [f"{name}_absent", f"{name}_a"], [f"{name}_late"], axis=1),
            make_node("Slice", [f"{name}_late", "start", "end", "one"], [f"{name}_before"]),
            make_node("Concat", [f"{name}_before", f"{name}_b"], [f"{name}_both"], axis=2),
        ]
    nodes += mean_nodes("kv_both", "logits_both")
    whole = windows * rate
    absent = np.zeros((batch, 1, rate, head_dim), kv.dtype)
    feeds = {
        "kv": kv[:, :whole],
        "gate": gate[:, :whole],
        "bias": bias,
        "kv_absent": absent,
        "logits_absent": np.full_like(absent, -np.inf),
        "shape": np.array([batch, windows, rate, width]),
        "start": np.array([0]),
        "end": np.array([windows]),
        "one": np.array([1]),
        "two": np.array([2]),
    }
    return run_graph(nodes, feeds)


class TestGraphs:
    @settings(deadline=None, max_examples=40)
    @given(shape=SHAPES, seed=SEEDS)
    def test_windows_side_by_side(self, run_graph, shape, seed) -> None:
        rate = shape["rate"]
        seq = shape["windows"] * rate + shape["left_over"] % rate
        kv, gate, bias = drawn(seed, (shape["batch"], seq, shape["head_dim"]), rate)
        found = pool(kv, gate, bias)
        assert found.shape == (shape["batch"], shape["windows"], shape["head_dim"])
        expected = pooled_by_graph(run_graph, kv, gate, bias)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)

    @settings(deadline=None, max_examples=40)
    @given(shape=SHAPES, seed=SEEDS)
    def test_overlapping_windows(self, run_graph, shape, seed) -> None:
        rate = shape["rate"]
        seq = shape["windows"] * rate + shape["left_over"] % rate
        kv, gate, bias = drawn(seed, (shape["batch"], seq, 2 * shape["head_dim"]), rate)
        found = pool_overlapping(kv, gate, bias)
        assert found.shape == (shape["batch"], shape["windows"], shape["head_dim"])
        expected = pooled_overlapping_by_graph(run_graph, kv, gate, bias)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-13)

    def test_float32_in_the_sizes_of_the_model(self, run_graph) -> None:
        kv, gate, bias = drawn(1, (2, 300, 512), 128, np.float32)
        found = pool(kv, gate, bias)
        assert found.dtype == np.float32
        expected = pooled_by_graph(run_graph, kv, gate, bias)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)

    def test_float32_overlapping_in_the_sizes_of_the_model(self, run_graph) -> None:
        kv, gate, bias = drawn(2, (2, 300, 1024), 4, np.float32)
        found = pool_overlapping(kv, gate, bias)
        assert found.dtype == np.float32
        expected = pooled_overlapping_by_graph(run_graph, kv, gate, bias)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)

    @pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
    def test_half_precision_is_rounded_once(self, run_graph, dtype) -> None:
        """Bound 1 ulp: the graph's float32 sums may tip a result that lies between two values."""
        kv, gate, bias = drawn(3, (2, 64, 32), 8, dtype)
        wide = [array.astype(np.float32) for array in (kv, gate, bias)]
        expected = pooled_by_graph(run_graph, *wide).astype(dtype)
        found = pool(kv, gate, bias)
        assert found.dtype == dtype
        steps = found.view(np.int16).astype(int) - expected.view(np.int16).astype(int)
        assert np.abs(steps).max() <= 1


class TestPieces:
    """A text given piece by piece, cut between windows, gives the entries of the whole."""

    @settings(deadline=None, max_examples=40)
    @given(shape=SHAPES, seed=SEEDS, data=st.data())
    def test_overlapping_windows_with_the_one_before(self, shape, seed, data) -> None:
        rate, windows = shape["rate"], shape["windows"] + 1
        kv, gate, bias = drawn(seed, (shape["batch"], windows * rate, 2 * shape["head_dim"]), rate)
        cut = rate * data.draw(st.integers(1, windows - 1))
        before = slice(cut - rate, cut)
        pieces = [
            pool_overlapping(kv[:, :cut], gate[:, :cut], bias),
            pool_overlapping(
                kv[:, cut:], gate[:, cut:], bias, prior=(kv[:, before], gate[:, before])
            ),
        ]
        assert np.array_equal(np.concatenate(pieces, axis=1), pool_overlapping(kv, gate, bias))

    def test_less_than_a_window_gives_no_entry(self) -> None:
        kv, gate, bias = drawn(4, (2, 3, 6), 4)
        assert pool(kv, gate, bias).shape == (2, 0, 6)
        assert pool_overlapping(kv, gate, bias).shape == (2, 0, 3)
        prior = (np.ones((2, 4, 6)), np.ones((2, 4, 6)))
        assert pool_overlapping(kv, gate, bias, prior=prior).shape == (2, 0, 3)

    def test_large_gates_do_not_overflow(self) -> None:
        kv, gate = np.array([[[1.0], [5.0]]]), np.array([[[1e4], [1e4 - 800]]])
        assert pool(kv, gate, np.zeros((2, 1))).tolist() == [[[1.0]]]

    def test_entries_rotate_at_the_first_token_of_their_window(self) -> None:
        assert window_positions(3, 4, 8).tolist() == [8, 12, 16]
        assert window_positions(0, 4).tolist() == []
        assert window_positions(2, 128).dtype == np.int64


class TestRefused:
    @pytest.mark.parametrize(
        ("kv", "gate", "bias", "key"),
        [
            ((4, 6), (4, 6), (2, 6), "kv"),
            ((1, 4, 6), (1, 5, 6), (2, 6), "gate"),
            ((1, 4, 6), (1, 4, 6), (2, 5), "bias"),
            ((1, 4, 6), (1, 4, 6), (6,), "bias"),
            ((1, 4, 6), (1, 4, 6), (0, 6), "bias"),
        ],
    )
    @pytest.mark.parametrize("pooling", [pool, pool_overlapping])
    def test_shapes(self, pooling, kv, gate, bias, key) -> None:
        with pytest.raises(ScheduleError) as caught:
            pooling(np.ones(kv), np.ones(gate), np.ones(bias))
        assert caught.value.key == key

    def test_two_series_have_an_even_width(self) -> None:
        with pytest.raises(ScheduleError) as caught:
            pool_overlapping(np.ones((1, 4, 5)), np.ones((1, 4, 5)), np.ones((2, 5)))
        assert caught.value.key == "kv"

    @pytest.mark.parametrize(
        "prior",
        [
            (np.ones((1, 3, 6)), np.ones((1, 2, 6))),
            (np.ones((1, 2, 6)), np.ones((1, 2, 3))),
            (np.ones((2, 2, 6)), np.ones((2, 2, 6))),
            (np.ones((1, 2, 6), np.float32), np.ones((1, 2, 6))),
            (np.ones((1, 2, 6)), np.ones((1, 2, 6), np.float16)),
        ],
    )
    def test_the_window_before(self, prior) -> None:
        with pytest.raises(ScheduleError) as caught:
            pool_overlapping(np.ones((1, 4, 6)), np.ones((1, 4, 6)), np.ones((2, 6)), prior=prior)
        assert caught.value.key == "prior"

    def test_dtypes(self) -> None:
        with pytest.raises(ScheduleError) as caught:
            pool(np.ones((1, 4, 6)), np.ones((1, 4, 6), int), np.ones((2, 6)))
        assert caught.value.key == "gate"

    @pytest.mark.parametrize(
        ("arguments", "key"),
        [((-1, 4), "windows"), ((2, 0), "windows"), ((2, 4, 3), "first"), ((2, 4, -4), "first")],
    )
    def test_positions(self, arguments, key) -> None:
        with pytest.raises(ScheduleError) as caught:
            window_positions(*arguments)
        assert caught.value.key == key


HEAD_DIM, ROPE_DIM, HIDDEN = 32, 8, 24


@pytest.fixture(scope="module")
def deepseek():
    """torch, the module of DeepSeek V4 and a small config of it."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers", minversion="5.24")
    from transformers.models.deepseek_v4 import modeling_deepseek_v4 as module

    config = transformers.DeepseekV4Config(
        hidden_size=HIDDEN,
        num_hidden_layers=1,
        num_attention_heads=2,
        head_dim=HEAD_DIM,
        partial_rotary_factor=ROPE_DIM / HEAD_DIM,
        q_lora_rank=16,
        index_n_heads=2,
        index_head_dim=16,
        compress_rates={"compressed_sparse_attention": 4, "heavily_compressed_attention": 8},
        layer_types=["compressed_sparse_attention"],
        mlp_layer_types=["moe"],
        max_position_embeddings=512,
        rms_norm_eps=1e-6,
    )
    return SimpleNamespace(torch=torch, module=module, config=config)


@pytest.mark.oracle
@pytest.mark.parametrize("kind", ["HCA", "CSA"])
@pytest.mark.parametrize("pieces", [[43], [17, 1, 9, 16]])
def test_the_compressors_of_transformers(deepseek, kind, pieces) -> None:
    """Pooling, norm and rotation in a row; the text whole, or in pieces through the model's cache.

    Bound 2e-6, in float32: twice the one above, for kv is larger here and the norm
    divides by a root mean square of 0.5 or more; measured 3.6e-7.
    """
    torch, module = deepseek.torch, deepseek.module
    generator = torch.Generator().manual_seed(11)
    compressor = getattr(module, f"DeepseekV4{kind}Compressor")(deepseek.config).eval()
    with torch.no_grad():
        for parameter in compressor.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
    text = torch.randn(2, sum(pieces), HIDDEN, generator=generator)
    cache = None
    if len(pieces) > 1:
        cache = SimpleNamespace(layers=[getattr(module, f"DeepseekV4{kind}Cache")(deepseek.config)])
    start = 0
    for length in pieces:
        ids = torch.arange(start, start + length)[None].expand(2, -1)
        with torch.no_grad():
            expected, _ = compressor(
                text[:, start : start + length], torch.zeros(2, length, 16), ids, cache, 0
            )
        start += length

    with torch.no_grad():
        kv, gate = compressor.kv_proj(text).numpy(), compressor.gate_proj(text).numpy()
        rows = torch.arange(sum(pieces))[None]
        cos, sin = (t[0].numpy() for t in compressor.rotary_emb(text, rows, layer_type="compress"))
    bias = compressor.position_bias.detach().numpy()
    pooled = (pool if kind == "HCA" else pool_overlapping)(kv, gate, bias)
    found = rms_norm_rotate(
        pooled,
        compressor.kv_norm.weight.detach().numpy(),
        *rows_at(cos, sin, window_positions(pooled.shape[1], len(bias))),
        epsilon=1e-6,
        interleaved=True,
        trailing=True,
    )
    assert pooled.shape[1] == sum(pieces) // len(bias) > 4
    assert np.sqrt((pooled**2).mean(axis=-1)).min() > 0.5
    np.testing.assert_allclose(found[:, None], expected.numpy(), rtol=0, atol=2e-6)
