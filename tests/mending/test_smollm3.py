"""A pack that no runtime loads is mended, loads, and equals transformers.

onnxruntime-genai 0.11.2 leaves two RotaryEmbedding nodes in layer 3 of a SmolLM3 pack,
which has no RoPE there; their position ids are made by nothing.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime.capi.onnxruntime_pybind11_state as ort_state
import pytest
from mending.mended import mend, run
from numpy.typing import NDArray
from onnx import numpy_helper

from packimport import check, patch
from packimport.errors import PatchError

PACK = Path(__file__).parent.parent / "packs" / "oga-0.11.2-smollm3"
TOKENS = np.random.default_rng(3).integers(0, 512, 400)


def test_what_is_found(tmp_path: Path) -> None:
    with pytest.raises(ort_state.InvalidArgument, match="position_ids"):
        run(PACK, TOKENS)
    report = check(PACK)
    assert (report.verdict, report.exit_code) == ("mismatch", 1)
    (found,) = report.findings
    assert found.code == "RPE016"
    assert found.message.startswith("layer 3 is declared without RoPE")
    assert found.where == "/model/layers.3/attn/q_rotary/RotaryEmbedding and 1 more"
    with pytest.raises(PatchError, match=r"RPE016.*leave --bytes-only out"):
        patch(PACK, tmp_path / "out", bytes_only=True)


def test_the_nodes_are_taken_out(tmp_path: Path) -> None:
    patched = mend(PACK, tmp_path / "out")
    assert [(r.where, r.reason) for r in patched.graph_changes] == [
        (
            f"/model/layers.3/attn/{side}_rotary/RotaryEmbedding",
            "RPE016: layer 3 is declared without RoPE",
        )
        for side in "qk"
    ]
    model = onnx.load(tmp_path / "out/model.onnx", load_external_data=False)
    assert "RotaryEmbedding" not in {node.op_type for node in model.graph.node}
    attention = [n for n in model.graph.node if n.op_type == "GroupQueryAttention"][3]
    # q, k and v come packed in the first input, as in the other layers.
    assert list(attention.input[:3]) == ["/model/layers.3/attn/qkv_proj/MatMul/output_0", "", ""]
    assert run(tmp_path / "out", TOKENS, 2).shape == (400, 512)


def test_a_layer_with_rope_that_can_not_run_is_refused(tmp_path: Path) -> None:
    pack = shutil.copytree(PACK, tmp_path / "p")
    config = json.loads((pack / "config.json").read_text(encoding="utf-8"))
    config["no_rope_layers"] = [1, 1, 1, 1]
    (pack / "config.json").write_text(json.dumps(config), encoding="utf-8", newline="\n")
    report = check(pack)
    assert (report.verdict, [f.code for f in report.findings]) == ("unsupported", ["RPE003"])
    with pytest.raises(PatchError, match="nothing in the graph makes"):
        patch(pack, tmp_path / "out")


@pytest.mark.oracle
@pytest.mark.parametrize("count", [24, 400])
def test_it_equals_transformers(tmp_path: Path, count: int) -> None:
    # transformers 5.24.0 with the weights of the graph itself.
    mend(PACK, tmp_path / "out")
    expected = smollm3(tmp_path / "out", TOKENS[:count])
    rotated = smollm3(tmp_path / "out", TOKENS[:count], no_rope_layers=[1, 1, 1, 1])
    for decode in (0, 8):
        logits = run(tmp_path / "out", TOKENS[:count], decode)
        # Right packs show 1e-10 and more. The small weights of this one hide its layer 3.
        assert mean_kl(expected, logits) < 1e-12
        assert mean_kl(rotated, logits) > 1e3 * mean_kl(expected, logits)


def smollm3(pack: Path, tokens: NDArray[np.int64], **settings: object) -> NDArray[np.float32]:
    """transformers' logits [tokens, vocab] of a SmolLM3 with the weights of a graph."""
    import torch
    from transformers import SmolLM3Config, SmolLM3ForCausalLM

    config = SmolLM3Config.from_pretrained(pack, **settings)
    model = onnx.load(pack / "model.onnx")
    weights = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    heads, kv, dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
    cuts = [heads * dim, (heads + kv) * dim]
    state: dict[str, NDArray[np.float32]] = {
        "model.embed_tokens.weight": weights["model.embed_tokens.weight"],
        "lm_head.weight": weights["lm_head.MatMul.weight"].T,
        "model.norm.weight": weights["model.layers.4.final_norm_layernorm.weight"],
    }
    for layer in range(config.num_hidden_layers):
        at = f"model.layers.{layer}"
        for norm in ("input_layernorm", "post_attention_layernorm"):
            state[f"{at}.{norm}.weight"] = weights[f"{at}.{norm}.weight"]
        parts = np.split(weights[f"{at}.attn.qkv_proj.MatMul.weight"].T, cuts)
        for side, part in zip("qkv", parts, strict=True):
            state[f"{at}.self_attn.{side}_proj.weight"] = part
        state[f"{at}.self_attn.o_proj.weight"] = weights[f"{at}.attn.o_proj.MatMul.weight"].T
        for name in ("gate_proj", "up_proj", "down_proj"):
            state[f"{at}.mlp.{name}.weight"] = weights[f"{at}.mlp.{name}.MatMul.weight"].T
    torch_model = SmolLM3ForCausalLM(config).eval()
    torch_model.load_state_dict({k: torch.tensor(v.copy()) for k, v in state.items()}, strict=True)
    with torch.no_grad():
        logits = torch_model(torch.tensor(tokens[None])).logits[0]
    return np.asarray(logits.numpy(), np.float32)


def mean_kl(expected: NDArray[np.float32], found: NDArray[np.float32]) -> float:
    """Mean KL divergence per token, in nats, in float64."""
    p, q = (log_softmax(logits.astype(np.float64)) for logits in (expected, found))
    return float(np.mean(np.sum(np.exp(p) * (p - q), axis=-1)))


def log_softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
