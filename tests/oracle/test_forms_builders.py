"""Verdicts on packs of onnxruntime-genai's builder: 0.18.0 beside transformers 5.24.0, 0.11.2
beside 4.57.1.

The truth is cos and sin as transformers computes them in the process that builds, and the tables
are what onnx reads from the pack: a site is wrong exactly where these differ.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from oracle.exporters import CURRENT, TINY, TOKENIZER, old_python, run

from packimport import check, patch
from packimport.audit.judge import JudgedSite

pytestmark = pytest.mark.oracle

SCRIPT = Path(__file__).parent / "make_builder_packs.py"
SHORT, LONG = 200, 600
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}
YARN = {
    "rope_type": "yarn",
    "factor": 32.0,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
    "truncate": False,
    "original_max_position_embeddings": 256,
}
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}


def lists(pairs: int) -> dict[str, list[float]]:
    return {
        "short_factor": [1.0 + i / 10 for i in range(pairs)],
        "long_factor": [1.0 + 2 * i for i in range(pairs)],
    }


# The convolution in the middle has no attention.
HYBRID = {
    "num_hidden_layers": 3,
    "layer_types": ["full_attention", "conv", "full_attention"],
}
# GroupQueryAttention takes a multiple of 8 pairs: half of a head of 32 entries.
WIDER = {"hidden_size": 128}


def newer() -> dict[str, dict[str, Any]]:
    """Configs as transformers 5 has them; the builder asks Phi-3's block for `type` as well."""

    def rope(theta: float, **block: Any) -> dict[str, Any]:
        return {"rope_parameters": {"rope_type": "default", "rope_theta": theta, **block}}

    longrope = {"rope_type": "longrope", "type": "longrope"}
    longrope |= {"original_max_position_embeddings": 256}
    phi3 = {"class": "Phi3", "original_max_position_embeddings": 256, "sliding_window": None}
    return {
        "llama": {"class": "Llama", **rope(5e5, **LLAMA3)},
        "qwen2": {"class": "Qwen2", **rope(1e6)},
        "qwen3": {"class": "Qwen3", **rope(1e6)},
        "phi3": {**phi3, **rope(1e4, **longrope, **lists(8), partial_rotary_factor=1.0)},
        "phi3 partial": {
            **phi3,
            **WIDER,
            **rope(1e4, **longrope, **lists(8), partial_rotary_factor=0.5),
        },
        "gemma3": {
            "class": "Gemma3Text",
            "num_hidden_layers": 6,
            "sliding_window": 64,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
                "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            },
        },
        "smollm3": {
            "class": "SmolLM3",
            "num_hidden_layers": 4,
            "no_rope_layers": [1, 1, 1, 0],
            **rope(2e6),
        },
        "nemotron": {
            "class": "Nemotron",
            **WIDER,
            "head_dim": 32,
            **rope(1e4, partial_rotary_factor=0.5),
        },
        "granite": {"class": "Granite", **rope(1e4)},
        "mistral": {"class": "Mistral", "sliding_window": None, **rope(1e6)},
        "gpt-oss": {"class": "GptOss", **EXPERTS, **rope(150000.0, **YARN)},
        "ernie4.5": {"class": "Ernie4_5", **rope(5e5)},
        "lfm2": {"class": "Lfm2", **HYBRID, **rope(1e6)},
    }


def older() -> dict[str, dict[str, Any]]:
    """The same as transformers 4.57 has them."""
    phi3 = {"class": "Phi3", "original_max_position_embeddings": 256, "sliding_window": None}
    smollm3 = {"num_hidden_layers": 4, "no_rope_layers": [1, 1, 1, 0], "rope_theta": 2e6}
    gemma3 = {
        "num_hidden_layers": 6,
        "sliding_window": 64,
        "rope_theta": 1e6,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }
    return {
        "llama": {"class": "Llama", "rope_theta": 5e5, "rope_scaling": LLAMA3},
        "qwen2": {"class": "Qwen2", "rope_theta": 1e6},
        "qwen3": {"class": "Qwen3", "rope_theta": 1e6},
        "phi3": {**phi3, "rope_scaling": {"type": "longrope", **lists(8)}},
        "phi3 partial": {
            **phi3,
            **WIDER,
            "partial_rotary_factor": 0.5,
            "rope_scaling": {"type": "longrope", **lists(8)},
        },
        "gemma3": {"class": "Gemma3Text", **gemma3},
        "smollm3": {"class": "SmolLM3", **smollm3},
        "nemotron": {
            "class": "Nemotron",
            **WIDER,
            "head_dim": 32,
            "partial_rotary_factor": 0.5,
        },
        "granite": {"class": "Granite"},
        "mistral": {"class": "Mistral", "sliding_window": None, "rope_theta": 1e6},
        "gpt-oss": {"class": "GptOss", **EXPERTS, "rope_theta": 150000.0, "rope_scaling": YARN},
        "ernie4.5": {"class": "Ernie4_5", "rope_theta": 5e5},
        "lfm2": {"class": "Lfm2", **HYBRID, "rope_theta": 1e6},
    }


ERAS = {"0.18.0": newer, "0.11.2": older}
# What does not build, and a word of why: found by building it.
NOT_BUILT = {
    ("0.18.0", "gemma3"): "rope",
    ("0.18.0", "smollm3"): "position_ids",
    ("0.11.2", "ernie4.5"): "",
    ("0.11.2", "lfm2"): "",
    ("0.11.2", "gpt-oss"): "quantization_config",
}
# Which packs are wrong (facts of these exporters), and which codes say so.
WRONG = {
    ("0.11.2", "llama"): {"RPE001"},
    ("0.11.2", "gemma3"): {"RPE001"},
    ("0.11.2", "smollm3"): {"RPE016"},
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Release ─▶ the folder of its packs."""
    made = {}
    for release, python in (("0.18.0", CURRENT), ("0.11.2", old_python())):
        if python is None:
            continue
        out = tmp_path_factory.mktemp(release)
        cells = {
            name: {**TINY, "max_position_embeddings": 1024, **cell}
            for name, cell in ERAS[release]().items()
        }
        for name in ("phi3", "phi3 partial", "lfm2"):
            cells[name].pop("head_dim")  # these have no such key
        (out / "cells.json").write_text(json.dumps(cells), encoding="utf-8")
        (out / "tokenizer.json").write_text(json.dumps(TOKENIZER), encoding="utf-8")
        run(python, str(SCRIPT), str(out / "cells.json"), str(out))
        made[release] = out
    return made


def stored(pack: Path) -> dict[str, np.ndarray]:
    """Every float constant of two dims, as onnx reads it, those in branches included."""

    def of(body: onnx.GraphProto) -> dict[str, np.ndarray]:
        found = {t.name: t for t in body.initializer}
        for node in body.node:
            for attribute in node.attribute:
                if attribute.HasField("g"):
                    found |= of(attribute.g)
                elif node.op_type == "Constant" and attribute.HasField("t"):
                    found[node.output[0]] = attribute.t
        return found

    tensors = of(onnx.load(str(pack / "model.onnx")).graph)
    return {name: numpy_helper.to_array(t) for name, t in tensors.items() if len(t.dims) == 2}


def is_wrong(judged: JudgedSite, pack: Path, truth: Any, layer_types: list[str] | None) -> bool:
    """Whether the table of a site, as onnx reads it, is not what transformers computes."""
    site = judged.site
    tables = stored(pack)
    kinds = {key.split("/")[0] for key in truth.files}
    kind = "" if kinds == {""} else (layer_types or [])[site.layers[0]]
    length = LONG if site.length is not None and site.length.long else SHORT
    for what, name in (("cos", site.cos.name), ("sin", site.sin.name)):
        right = truth[f"{kind}/{length}/{what}"]
        pairs = site.pairs
        # transformers lays each value down twice, half a row apart or side by side.
        columns = right[:, ::2] if np.allclose(right[:, ::2], right[:, 1::2]) else right[:, :pairs]
        if right.shape[1] == pairs:
            columns = right
        if np.abs(tables[name][: len(columns)] - columns).max() > 1e-3:
            return True
    return False


@pytest.mark.parametrize("name", sorted(newer()))
@pytest.mark.parametrize("release", sorted(ERAS))
def test_verdict(release: str, name: str, built: dict[str, Path], tmp_path: Path) -> None:
    if release not in built:
        pytest.skip("PACKIMPORT_OLD_BUILDER names no interpreter with builder 0.11.2")
    folder = built[release] / name
    error = folder / "error.txt"
    if (release, name) in NOT_BUILT:
        assert NOT_BUILT[release, name] in error.read_text(encoding="utf-8")
        return
    assert not error.exists(), error.read_text(encoding="utf-8")
    pack, model = folder / "pack", folder / "model"
    report = check(pack, config=model)
    codes = {f.code for f in report.findings if f.severity == "error"}
    assert codes == WRONG.get((release, name), set()), report.text()
    config = json.loads((model / "config.json").read_text(encoding="utf-8"))
    truth = np.load(folder / "truth.npz")
    for judged in report.sites:
        wrong = is_wrong(judged, pack, truth, config.get("layer_types"))
        assert bool(judged.measurement.wrong_pairs) == wrong, report.text()
    expected = {0, 2} if name == "lfm2" else {0, 1}
    assert {layer for judged in report.sites for layer in judged.site.layers} >= expected
    if codes:
        patch(pack, tmp_path / "out", config=model)
        after = check(tmp_path / "out")
        assert after.verdict == "ok"
        for judged in after.sites:
            assert not is_wrong(judged, tmp_path / "out", truth, config.get("layer_types"))
