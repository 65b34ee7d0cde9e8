"""AMD's own exporter of Ryzen AI 1.5 (onnxruntime-genai-directml-ryzenai 0.7.0.1, beside
transformers 4.51.3): its llama3 pack is found wrong, mended, and rotates as transformers does.
So are linear and yarn; longrope is right.

The truth is transformers' (5.24.0) own inv_freq for the config that was exported, and tables as
onnx reads them from the packs. The exporter's wheel is for Windows, its builder is Python alone.
"""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper
from oracle.exporters import old_python

from packimport import check, patch

pytestmark = pytest.mark.oracle

HERE = Path(__file__).parent
KEPT = HERE.parent / "packs" / "amd-oga-0.7.0.1-llama3-int4-dml"
WAYS = {"fp32/cpu": ("fp32", "cpu"), "int4/dml": ("int4", "dml")}
# meta-llama/Llama-3.2-1B has these.
LLAMA3 = {
    "class": "Llama",
    "head_dim": 64,
    "max_position_embeddings": 131072,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}
PLAIN = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024},
}
LONGROPE = {
    "class": "Phi3",
    "max_position_embeddings": 4096,
    "original_max_position_embeddings": 1024,
    "rope_theta": 10000.0,
    "sliding_window": None,
    "rope_scaling": {
        "type": "longrope",
        "short_factor": [1.0 + i / 64 for i in range(32)],
        "long_factor": [1.0 + i * i / 16 for i in range(32)],
    },
}


def libraries() -> Path:
    """The folder with the exporter and the versions of its libraries, if CI made one."""
    folder, python = os.environ.get("PACKIMPORT_AMD_BUILDER"), old_python()
    if folder is None or python is None:
        if os.environ.get("CI"):
            pytest.fail("PACKIMPORT_AMD_BUILDER or PACKIMPORT_OLD_BUILDER is not set")
        pytest.skip("PACKIMPORT_AMD_BUILDER names no folder with AMD's exporter")
    return Path(folder)


def run(*arguments: str | Path) -> None:
    """A script, by the interpreter that has torch, with the exporter's libraries before its own."""
    python = old_python()
    assert python is not None
    done = subprocess.run(
        [python, *map(str, arguments)],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(libraries()), "HF_HUB_OFFLINE": "1"},
    )
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


def save(folder: Path, settings: dict[str, Any]) -> Path:
    libraries()
    run(HERE / "make_amd_model.py", json.dumps(settings), folder)
    return folder


def build(model: Path, out: Path, way: str) -> Path:
    precision, provider = WAYS[way]
    builder = libraries() / "onnxruntime_genai" / "models" / "builder.py"
    cache = out.parent / "cache"
    run(builder, "-m", model, "-o", out, "-p", precision, "-e", provider, "-c", cache)
    return out


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("amd") / "model", LLAMA3)


@pytest.fixture(scope="module", params=sorted(WAYS))
def pack(request: pytest.FixtureRequest, model: Path) -> Path:
    return build(model, model.parent / request.param.replace("/", "-"), request.param)


@dataclass(frozen=True)
class Truth:
    """inv_freq as transformers computes it from a config, and the factor of cos and sin."""

    inv_freq: NDArray[np.float32]
    attention: float = 1.0


def truth(folder: Path, length: int | None = None) -> Truth:
    import transformers
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    kind = config.rope_parameters["rope_type"]
    inv_freq, attention = ROPE_INIT_FUNCTIONS[kind](config, "cpu", seq_len=length)
    return Truth(np.asarray(inv_freq.numpy(), np.float32), float(attention))


def plain(theta: float, d: int) -> Truth:
    """The same without scaling, by transformers' formula in torch."""
    import torch

    inv_freq = 1.0 / theta ** (torch.arange(0, d, 2, dtype=torch.int64).float() / d)
    return Truth(inv_freq.numpy())


def stored(pack: Path) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    tensors = {t.name: t for t in onnx.load(str(pack / "model.onnx")).graph.initializer}
    cos, sin = (numpy_helper.to_array(tensors[name]) for name in ("cos_cache", "sin_cache"))
    return cos, sin


def wrong_pairs(pack: Path, right: Truth, part: slice = slice(None)) -> list[int]:
    """Pairs of which any entry is further from the truth than an ulp and float32's rounding.

    part: the rows of the table that are positions 0 and on.
    """
    tables = [table[part] for table in stored(pack)]
    positions = np.arange(len(tables[0]), dtype=np.float32)
    found = np.zeros(len(right.inv_freq), bool)
    for start in range(0, len(positions), 8192):
        rows = slice(start, start + 8192)
        angles = np.outer(positions[rows], right.inv_freq).astype(np.float64)
        for table, function in zip(tables, (np.cos, np.sin), strict=True):
            values = right.attention * function(angles)
            ulp = np.abs(np.spacing(values.astype(table.dtype))).astype(np.float64)
            error = np.abs(table[rows].astype(np.float64) - values)
            found |= (error > 1.01 * ulp + 1e-6).any(axis=0)
    return [int(index) for index in np.flatnonzero(found)]


def test_the_pack_is_found_wrong_and_mended(pack: Path, model: Path, tmp_path: Path) -> None:
    right = truth(model)
    assert right.attention == 1
    assert wrong_pairs(pack, right) == list(range(15, 25))
    report = check(pack, config=model)
    assert (report.verdict, report.exit_code) == ("mismatch", 1)
    (judged,) = report.sites
    measured = judged.measurement
    assert measured.baked_as == "llama3 with original_max_position_embeddings 131072"
    assert measured.wrong_pairs == 10
    assert measured.max_ratio == pytest.approx(32, rel=1e-3)
    assert "Ryzen AI 1.5" in report.text()
    mended_as_declared(pack, model, tmp_path / "out")


def test_the_kept_pack(tmp_path: Path) -> None:
    assert wrong_pairs(KEPT, truth(KEPT))
    report = check(KEPT)
    assert report.exit_code == 1
    assert [judged.measurement.baked_as for judged in report.sites] == [
        "llama3 with original_max_position_embeddings 2048"
    ]
    mended_as_declared(KEPT, None, tmp_path / "out")


@pytest.mark.parametrize("kind", sorted(PLAIN))
def test_scaling_that_is_lost(kind: str, tmp_path: Path) -> None:
    settings = {"max_position_embeddings": 4096, "rope_theta": 10000.0, "head_dim": 64}
    model = save(tmp_path / "m", {"class": "Llama", **settings, "rope_scaling": PLAIN[kind]})
    pack = build(model, tmp_path / "pack", "int4/dml")
    assert wrong_pairs(pack, plain(10000.0, 64)) == []
    assert wrong_pairs(pack, truth(model))
    report = check(pack, config=model)
    assert report.exit_code == 1
    assert [judged.measurement.baked_as for judged in report.sites] == ["default"]
    assert "Ryzen AI 1.5" in report.text()
    mended_as_declared(pack, model, tmp_path / "out")


def test_longrope_is_right(tmp_path: Path) -> None:
    """For DirectML: the short rows, then the long ones, and position ids that are shifted."""
    model = save(tmp_path / "m", LONGROPE)
    pack = build(model, tmp_path / "pack", "int4/dml")
    assert len(stored(pack)[0]) == 1024 + 4096
    assert wrong_pairs(pack, truth(model, 1024), slice(0, 1024)) == []
    assert wrong_pairs(pack, truth(model, 4096), slice(1024, None)) == []
    report = check(pack, config=model)
    assert (report.verdict, report.exit_code) == ("ok", 0), report.text()
    assert [judged.measurement.baked_as for judged in report.sites] == ["longrope", "longrope"]


def mended_as_declared(pack: Path, model: Path | None, out: Path) -> None:
    """Patch; the tables are transformers', no other byte of a file changed."""
    patch(pack, out, config=model)
    assert wrong_pairs(out, truth(model or pack)) == []
    assert check(out).verdict == "ok"
    spans = {}
    for tensor in onnx.load(str(pack / "model.onnx"), load_external_data=False).graph.initializer:
        if tensor.name in ("cos_cache", "sin_cache"):
            place = {entry.key: entry.value for entry in tensor.external_data}
            spans[int(place["offset"])] = int(place["length"])
    old, new = (bytearray((p / "model.onnx.data").read_bytes()) for p in (pack, out))
    assert len(old) == len(new)
    for offset, length in spans.items():
        old[offset : offset + length] = new[offset : offset + length] = bytes(length)
    assert old == new
    for file in pack.iterdir():
        if file.is_file() and file.name != "model.onnx.data":
            assert (out / file.name).read_bytes() == file.read_bytes(), file.name


@pytest.mark.parametrize("pack", ["fp32/cpu"], indirect=True)
def test_the_mended_pack_computes_the_models_logits(
    pack: Path, model: Path, tmp_path: Path
) -> None:
    """On the CPU, at positions where the wrong pairs have turned far enough to tell."""
    import torch
    import transformers

    ids = np.random.default_rng(3).integers(3, 512, (1, 1024))
    reference = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.no_grad():
        right = reference(torch.from_numpy(ids)).logits.numpy()
    patch(pack, tmp_path / "out", config=model)
    before, after = (np.abs(logits(p, ids) - right).max() for p in (pack, tmp_path / "out"))
    assert after < 1e-4
    assert before > 20 * after


def logits(pack: Path, ids: NDArray[np.int64]) -> NDArray[np.float32]:
    import onnxruntime

    session = onnxruntime.InferenceSession(
        str(pack / "model.onnx"), providers=["CPUExecutionProvider"]
    )
    feeds = {"input_ids": ids, "attention_mask": np.ones_like(ids)}
    for value in session.get_inputs():
        if value.name.startswith("past"):
            feeds[value.name] = np.zeros((1, value.shape[1], 0, value.shape[3]), np.float32)
    return np.asarray(session.run(["logits"], feeds)[0])
