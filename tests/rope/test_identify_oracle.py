"""identify on tables that torch 2.13.0 makes of transformers 5.24.0's frequencies.

float32 angles, cos and sin by torch, as a model's rotary embedding computes them, on
whatever kernels torch picks for this CPU; then torch's own cast to the dtype.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from packimport.rope.identify import identify
from packimport.rope.schedule import Rope

pytestmark = pytest.mark.oracle
torch = pytest.importorskip("torch")
pytest.importorskip("transformers", minversion="5.24")

ROWS = (256, 1000, 2048, 4096, 32768, 131072)


def block(kind: str, rng: np.random.Generator) -> dict[str, object]:
    """rope_parameters of one kind, drawn at random."""
    value = 10 ** rng.uniform(3, 8)
    theta = float(rng.choice([1e4, 5e5, 1e6, round(value), float(f"{value:.3g}")]))
    found: dict[str, object] = {"rope_type": kind, "rope_theta": theta}
    if kind != "default":
        found["factor"] = float(rng.choice([4, 8, 32, float(f"{rng.uniform(1.5, 32):.3g}")]))
    if kind == "llama3":
        low = float(rng.choice([1, 1, 2]))
        found["low_freq_factor"] = low
        found["high_freq_factor"] = low * float(rng.choice([4, 2, 8]))
    if kind in ("llama3", "yarn"):
        found["original_max_position_embeddings"] = int(rng.choice([2048, 8192, 30000, 131072]))
    return found


def frequencies(
    block: dict[str, object], head_dim: int, seq_len: int | None = None
) -> tuple[torch.Tensor, float]:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.phi.modeling_phi import PhiRotaryEmbedding

    config = LlamaConfig(
        hidden_size=2 * head_dim,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=head_dim,
        max_position_embeddings=4096,
        rope_parameters=dict(block),
    )
    if block["rope_type"] == "default":
        return PhiRotaryEmbedding.compute_default_rope_parameters(config)
    return ROPE_INIT_FUNCTIONS[block["rope_type"]](config, seq_len=seq_len)


def table(
    inv_freq: torch.Tensor, rows: int, dtype: str, attention: float, scale: float = 1.0
) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    angles = torch.outer(torch.arange(rows) * scale, inv_freq)
    return numpy_of(angles.cos() * attention, dtype), numpy_of(angles.sin() * attention, dtype)


def numpy_of(tensor: torch.Tensor, dtype: str) -> NDArray[np.generic]:
    short = tensor.to(getattr(torch, dtype))
    if dtype == "bfloat16":
        return short.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return short.numpy()


def rope_of(block: dict[str, object], head_dim: int) -> Rope:
    fields = {k: v for k, v in block.items() if k not in ("rope_type", "rope_theta")}
    return Rope(
        type=block["rope_type"],
        theta=block["rope_theta"],
        head_dim=head_dim,
        rotary_dim=head_dim,
        max_position_embeddings=4096,
        **fields,
    )


@pytest.mark.parametrize("seed", range(25))
@pytest.mark.parametrize("kind", ["default", "linear", "dynamic", "llama3", "yarn"])
def test_torch_tables(kind: str, seed: int) -> None:
    rng = np.random.default_rng([50, seed, len(kind)])
    head_dim = int(rng.choice([16, 32, 64, 96, 128]))
    rows = int(rng.choice(ROWS, p=[0.2, 0.2, 0.2, 0.3, 0.06, 0.04]))
    dtype = str(rng.choice(["float32", "float16", "bfloat16"]))
    drawn = block(kind, rng)
    inv_freq, attention = frequencies(drawn, head_dim)
    declared = rope_of(drawn, head_dim)
    said = f"{drawn}, head_dim {head_dim}, {rows} rows, {dtype}"

    made = table(inv_freq, rows, dtype, attention)
    found = identify(*made, [declared])
    assert (found.label, found.mistake, found.ambiguous) == (kind, None, ()), said

    named = identify(*made)
    plain, _ = frequencies({"rope_type": "default", "rope_theta": drawn["rope_theta"]}, head_dim)
    expected = "default" if kind == "dynamic" else kind
    assert named.rope is not None, said
    if expected == "default" or not torch.allclose(inv_freq, plain, rtol=2.0**-20, atol=0):
        assert named.rope.type == expected, said

    doubled = identify(*table(inv_freq, rows, dtype, attention, scale=2.0), [declared])
    assert doubled.label == "positions scaled by 2" or (
        kind == "linear" and drawn["factor"] == 2 and doubled.label == "default"
    ), said

    if kind == "dynamic":
        longer, _ = frequencies(drawn, head_dim, seq_len=65536)
        at_length = identify(*table(longer, rows, dtype, 1.0), [declared])
        assert at_length.label == "dynamic at length 65536", said
    elif kind != "default" and not torch.allclose(inv_freq, plain, rtol=2.0**-20, atol=0):
        lost = identify(*table(plain, rows, dtype, 1.0), [declared])
        assert (lost.label, lost.mistake) == ("default", f"{kind}-lost"), said
