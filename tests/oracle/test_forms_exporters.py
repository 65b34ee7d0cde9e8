"""Verdicts on graphs of torch's two exporters (2.13.0, transformers 5.24.0) and of optimum-onnx
0.1.0 (transformers 4.57.1), before and after onnxruntime's optimizer.

The truth is logits: those of the graph in onnxruntime equal those of the model that was exported,
at 24 tokens and at 320, beyond the original length of 256; or they don't.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import onnxruntime.capi.onnxruntime_pybind11_state as ort_state
import pytest
from oracle.exporters import CURRENT, TINY, old_python, run

from packimport import check, patch
from packimport.audit.report import Report

pytestmark = pytest.mark.oracle

SCRIPT = Path(__file__).parent / "make_exports.py"
LENGTHS = (24, 320)
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 256,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
LISTS = {
    "short_factor": [1.0 + i / 10 for i in range(8)],
    "long_factor": [1.0 + 2 * i for i in range(8)],
}
KINDS = ["sliding_attention", "sliding_attention", "full_attention"]
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1, "sliding_window": 64}
OSS = {**YARN, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False}
# Its keys have other names, and it states no theta.
GPTJ = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 1024, "n_inner": 128}
FALCON = {"alibi": False, "bias": False, "multi_query": True, "new_decoder_architecture": False}
# Keys that a class does not have.
HEADS = ("head_dim", "num_key_value_heads")
SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "max_position_embeddings")
WITHOUT = {
    "phi3": ("head_dim",),
    "gptj": (*HEADS, *SIZES, "intermediate_size"),
    "falcon": (*HEADS, "intermediate_size"),
    "persimmon": HEADS,
}
WINDOW = {"num_hidden_layers": 3, "layer_types": KINDS, "sliding_window": 64}


def newer() -> dict[str, dict[str, Any]]:
    def rope(theta: float, **block: Any) -> dict[str, Any]:
        return {"rope_parameters": {"rope_type": "default", "rope_theta": theta, **block}}

    longrope = {"rope_type": "longrope", "original_max_position_embeddings": 256, **LISTS}
    full = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}
    local = {"rope_type": "default", "rope_theta": 1e4}
    return {
        "llama": {"class": "Llama", **rope(5e5, **LLAMA3)},
        "yarn": {"class": "Llama", **rope(1e4, **YARN)},
        "qwen3": {"class": "Qwen3", **rope(1e6)},
        "phi3": {
            "class": "Phi3",
            "original_max_position_embeddings": 256,
            "sliding_window": None,
            **rope(1e4, **longrope),
        },
        "gemma3": {
            "class": "Gemma3Text",
            **WINDOW,
            "rope_parameters": {"full_attention": full, "sliding_attention": local},
        },
        "cohere": {"class": "Cohere", **rope(1e4)},
        "glm4": {"class": "Glm4", **rope(1e4, partial_rotary_factor=0.5)},
        "gptj": {"class": "GPTJ", "rotary_dim": 8, **GPTJ},
        "falcon": {"class": "Falcon", **FALCON, **rope(1e4)},
        "helium": {"class": "Helium", "pad_token_id": 511, **rope(1e5)},
        "persimmon": {"class": "Persimmon", **rope(1e4, partial_rotary_factor=0.5)},
        "gpt-oss": {"class": "GptOss", **EXPERTS, **rope(15e4, **OSS)},
    }


def older() -> dict[str, dict[str, Any]]:
    longrope = {"type": "longrope", **LISTS}
    return {
        "llama": {"class": "Llama", "rope_theta": 5e5, "rope_scaling": LLAMA3},
        "yarn": {"class": "Llama", "rope_scaling": YARN},
        "qwen3": {"class": "Qwen3", "rope_theta": 1e6},
        "phi3": {
            "class": "Phi3",
            "original_max_position_embeddings": 256,
            "sliding_window": None,
            "rope_scaling": longrope,
        },
        "gemma3": {
            "class": "Gemma3Text",
            **WINDOW,
            "rope_theta": 1e6,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
        "cohere": {"class": "Cohere", "rope_theta": 1e4},
        "glm4": {"class": "Glm4", "partial_rotary_factor": 0.5, "rope_theta": 1e4},
        "gptj": {"class": "GPTJ", "rotary_dim": 8, **GPTJ},
        "falcon": {"class": "Falcon", **FALCON, "rope_theta": 1e4},
        "helium": {"class": "Helium", "pad_token_id": 511, "rope_theta": 1e5},
        "persimmon": {"class": "Persimmon", "partial_rotary_factor": 0.5, "rope_theta": 1e4},
        "gpt-oss": {"class": "GptOss", **EXPERTS, "rope_theta": 15e4, "rope_scaling": OSS},
    }


EXPORTERS = ("dynamo", "opset23", "optimum", "script")
# What does not export, and a word of why: found by exporting it.
NOT_EXPORTED = {
    ("optimum", "glm4"): "unsupported architecture",
    ("optimum", "persimmon"): "unsupported architecture",
    ("opset23", "falcon"): "q_num_heads = kv_num_heads",
    ("script", "glm4"): "same rank",
    ("script", "phi3"): "aten::copy",
}
# What exports and is no graph that runs: torch's older exporter stacks along a wrong axis.
NOT_RUN = {("script", "cohere"), ("script", "helium")}
# Refused behind onnxruntime's optimizer, which lets one head and one batch change places.
NOT_OPTIMIZED = {("dynamo", "falcon")}
# Families that pair neighbours, and one beside each that pairs halves.
INTERLEAVED = {"cohere": "llama", "glm4": "phi", "helium": "llama"}
# What tracing freezes: the short list serves calls beyond the original length as well.
WRONG = {("optimum", "phi3"): {"RPE012"}}


def interpreter(exporter: str) -> str:
    """The interpreter that has an exporter; skips where none has."""
    if exporter == "optimum":
        python = old_python()
        found = (
            python is not None
            and not subprocess.run(
                [python, "-c", "import optimum.exporters.onnx"], check=False, capture_output=True
            ).returncode
        )
        if python is None or not found:
            pytest.skip("PACKIMPORT_OLD_BUILDER names no interpreter with optimum-onnx")
        return python
    if exporter != "script" and importlib.util.find_spec("onnxscript") is None:
        pytest.skip("torch's newer exporter needs onnxscript")
    return CURRENT


@pytest.fixture(scope="module", params=EXPORTERS)
def exported(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    """An exporter, and the folder of what it made."""
    exporter = request.param
    python = interpreter(exporter)
    out = tmp_path_factory.mktemp(exporter)
    cells = older() if exporter == "optimum" else newer()
    cells = {n: {**TINY, "max_position_embeddings": 1024, **cell} for n, cell in cells.items()}
    for name, keys in WITHOUT.items():
        cells[name] = {key: value for key, value in cells[name].items() if key not in keys}
    (out / "cells.json").write_text(json.dumps(cells), encoding="utf-8")
    run(python, str(SCRIPT), exporter, str(out / "cells.json"), str(out))
    return exporter, out


def logits(session: ort.InferenceSession, length: int) -> np.ndarray:
    fed: dict[str, Any] = {}
    for value in session.get_inputs():
        if value.name == "input_ids":
            fed[value.name] = (np.arange(length) * 7 % 500)[None]
        elif value.name == "attention_mask":
            fed[value.name] = np.ones((1, length), np.int64)
        elif value.name == "position_ids":
            fed[value.name] = np.arange(length)[None]
        else:
            fed[value.name] = np.zeros((1, value.shape[1], 0, value.shape[3]), np.float32)
    return np.asarray(session.run(["logits"], fed)[0][0])


def session_of(pack: Path) -> ort.InferenceSession:
    return ort.InferenceSession(str(pack / "model.onnx"), providers=["CPUExecutionProvider"])


def gaps_of(pack: Path, truth: Any) -> list[float]:
    """The largest difference of logits to the model that was exported, by length."""
    session = session_of(pack)
    return [float(np.abs(logits(session, n) - truth[str(n)]).max()) for n in LENGTHS]


def with_changes(pack: Path, folder: Path, **changes: Any) -> Path:
    """A pack's config.json with other values."""
    config = json.loads((pack / "config.json").read_text(encoding="utf-8"))
    path = folder / "changed.json"
    path.write_text(json.dumps({**config, **changes}), encoding="utf-8")
    return path


def optimized(pack: Path, out: Path) -> Path:
    """The pack with its graph as onnxruntime's optimizer leaves it."""
    shutil.copytree(pack, out)
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(out / "model.onnx")
    ort.InferenceSession(str(pack / "model.onnx"), options, providers=["CPUExecutionProvider"])
    return out


def codes(report: Report) -> set[str]:
    return {finding.code for finding in report.findings if finding.severity == "error"}


@pytest.mark.parametrize("name", sorted(newer()))
def test_verdict(exported: tuple[str, Path], name: str, tmp_path: Path) -> None:
    exporter, out = exported
    error = out / f"{name}.txt"
    if (exporter, name) in NOT_EXPORTED:
        assert NOT_EXPORTED[exporter, name] in error.read_text(encoding="utf-8")
        return
    assert not error.exists(), error.read_text(encoding="utf-8")
    truth = np.load(out / f"{name}.npz")
    pack = out / name
    if (exporter, name) in NOT_RUN:
        with pytest.raises(ort_state.Fail, match="Reshape"):
            logits(session_of(pack), LENGTHS[0])
        assert codes(check(pack)) == {"RPE003"}
        return
    gaps = gaps_of(pack, truth)
    expected = WRONG.get((exporter, name), set())
    assert gaps[0] < 1e-4
    assert (gaps[1] < 1e-4) == (not expected), gaps
    report = check(pack)
    assert codes(report) == expected, report.text()
    layers = {layer for judged in report.sites for layer in judged.site.layers}
    assert layers == set(range(3 if name == "gemma3" else 2))
    again = check(optimized(pack, tmp_path / "optimized"))
    is_refused = (exporter, name) in NOT_OPTIMIZED
    assert codes(again) == ({"RPE003"} if is_refused else expected), again.text()
    if name in INTERLEAVED:
        halves = with_changes(pack, tmp_path, model_type=INTERLEAVED[name])
        assert codes(check(pack, config=halves)) == {"RPE007"}
    # The same graph under another declaration is wrong.
    config = json.loads((pack / "config.json").read_text(encoding="utf-8"))
    block = config.get("rope_parameters") or config
    for part in [block, *(value for value in block.values() if isinstance(value, dict))]:
        if "rope_theta" in part:
            part["rope_theta"] *= 3
    if name == "gptj":
        config["rope_theta"] = 3e4
    other = tmp_path / "other.json"
    other.write_text(json.dumps(config), encoding="utf-8")
    assert "RPE001" in codes(check(pack, config=other))
    if expected:
        return
    # Mended to that, and back again.
    patch(pack, tmp_path / "there", config=other)
    assert check(tmp_path / "there").verdict == "ok"
    assert gaps_of(tmp_path / "there", truth)[1] > 1e-4
    patch(tmp_path / "there", tmp_path / "back", config=pack / "config.json")
    assert max(gaps_of(tmp_path / "back", truth)) < 1e-4
