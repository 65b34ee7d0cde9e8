"""AMD's own exporter of Ryzen AI 1.5 (onnxruntime-genai-directml-ryzenai 0.7.0.1, beside
transformers 4.51.3): its llama3 pack is found wrong, mended, and rotates as transformers does.

The truth is transformers' (5.24.0) own inv_freq for the config that was exported, and tables as
onnx reads them from the packs. The exporter's wheel is for Windows, its builder is Python alone.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

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
Doubles = NDArray[np.float64]


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


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    libraries()
    out = tmp_path_factory.mktemp("amd") / "model"
    run(HERE / "make_amd_model.py", out)
    return out


@pytest.fixture(scope="module", params=sorted(WAYS))
def pack(request: pytest.FixtureRequest, model: Path) -> Path:
    precision, provider = WAYS[request.param]
    out = model.parent / precision
    builder = libraries() / "onnxruntime_genai" / "models" / "builder.py"
    run(builder, "-m", model, "-o", out, "-p", precision, "-e", provider, "-c", out / "cache")
    return out


def frequencies(folder: Path) -> NDArray[np.float32]:
    """inv_freq of llama3 as transformers computes it from a config."""
    import transformers
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    inv_freq, attention = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    assert attention == 1
    return np.asarray(inv_freq.numpy(), np.float32)


def stored(pack: Path) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    tensors = {t.name: t for t in onnx.load(str(pack / "model.onnx")).graph.initializer}
    cos, sin = (numpy_helper.to_array(tensors[name]) for name in ("cos_cache", "sin_cache"))
    return cos, sin


def wrong_pairs(pack: Path, inv_freq: NDArray[np.float32]) -> list[int]:
    """Pairs of which any entry is further from the truth than an ulp and float32's rounding."""
    tables = stored(pack)
    positions = np.arange(len(tables[0]), dtype=np.float32)
    found = np.zeros(len(inv_freq), bool)
    for start in range(0, len(positions), 8192):
        rows = slice(start, start + 8192)
        angles = np.outer(positions[rows], inv_freq).astype(np.float64)
        for table, function in zip(tables, (np.cos, np.sin), strict=True):
            right = function(angles)
            ulp = np.abs(np.spacing(right.astype(table.dtype))).astype(np.float64)
            error = np.abs(table[rows].astype(np.float64) - right)
            found |= (error > 1.01 * ulp + 1e-6).any(axis=0)
    return [int(index) for index in np.flatnonzero(found)]


def test_the_pack_is_found_wrong_and_mended(pack: Path, model: Path, tmp_path: Path) -> None:
    inv_freq = frequencies(model)
    assert wrong_pairs(pack, inv_freq) == list(range(15, 25))
    report = check(pack, config=model)
    assert (report.verdict, report.exit_code) == ("mismatch", 1)
    (judged,) = report.sites
    measured = judged.measurement
    assert measured.baked_as == "llama3 with original_max_position_embeddings 131072"
    assert measured.wrong_pairs == 10
    assert measured.max_ratio == pytest.approx(32, rel=1e-3)
    assert "0.6.0 to 0.13.2" in report.text()
    mended_as_declared(pack, model, tmp_path / "out")


def test_the_kept_pack(tmp_path: Path) -> None:
    inv_freq = frequencies(KEPT)
    assert wrong_pairs(KEPT, inv_freq)
    report = check(KEPT)
    assert report.exit_code == 1
    assert [judged.measurement.baked_as for judged in report.sites] == [
        "llama3 with original_max_position_embeddings 2048"
    ]
    mended_as_declared(KEPT, None, tmp_path / "out")


def mended_as_declared(pack: Path, model: Path | None, out: Path) -> None:
    """Patch; the tables are transformers', no other byte of a file changed."""
    patch(pack, out, config=model)
    assert wrong_pairs(out, frequencies(model or pack)) == []
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
