"""Packs of real exporters, kept in tests/packs: each verdict is what its exporter's fault says.

What each release bakes was found by building it and comparing its table with
transformers (4.57.1 for 0.11.2, 5.24.0 for 0.18.0); tests/oracle repeats that.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from packimport import check, patch

PACKS = Path(__file__).parent / "packs"
# Its graph changes as well: tests/mending.
SMOLLM3 = "oga-0.11.2-smollm3"

VERDICTS = {
    "oga-0.11.2-llama3": (1, ["llama3 with original_max_position_embeddings 2048"]),
    "amd-oga-0.7.0.1-llama3-int4-dml": (1, ["llama3 with original_max_position_embeddings 2048"]),
    "oga-0.18.0-linear": (1, ["default"]),
    "oga-0.11.2-gemma3": (1, ["default", "default"]),
    "oga-0.18.0-qwen3": (0, ["default"]),
    "oga-0.18.0-llama3-int4": (0, ["llama3"]),
    "oga-0.11.2-smollm3": (1, ["default"]),
    "oga-0.18.0-longrope-dml": (0, ["longrope", "longrope"]),
    "oga-0.18.0-longrope-if": (0, ["longrope", "longrope"]),
    "optimum-0.1.0-llama3": (0, ["llama3"]),
}
RIGHT = sorted(name for name, (code, _) in VERDICTS.items() if code == 0)
# Right packs as their exporter would have made them of another config: what they declare
# instead, as changes of the RoPE block. New bytes mend them.
REDECLARED = {
    "oga-0.18.0-longrope-dml": {"long_factor": [1.0 + 3 * i for i in range(8)]},
    "oga-0.18.0-longrope-if": {"short_factor": [1.0 + i / 5 for i in range(8)]},
    "optimum-0.1.0-llama3": {"factor": 8.0},
    "oga-0.18.0-llama3-int4": {"factor": 8.0},
}


def test_every_pack_has_a_verdict() -> None:
    assert {path.name for path in PACKS.iterdir()} == VERDICTS.keys()


@pytest.mark.parametrize("name", sorted(VERDICTS))
def test_verdict(name: str) -> None:
    report = check(PACKS / name)
    exit_code, labels = VERDICTS[name]
    assert report.exit_code == exit_code
    assert [judged.measurement.baked_as for judged in report.sites] == labels


@pytest.mark.parametrize("name", sorted(VERDICTS.keys() - {*RIGHT, SMOLLM3}))
def test_a_wrong_pack_is_mended(name: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    patched = patch(PACKS / name, out)
    assert patched.edits
    assert check(out).verdict == "ok"
    assert not changed_outside_tables(PACKS / name, out)
    again = patch(out, tmp_path / "again")
    assert again.edits == ()
    for path in out.iterdir():
        if path.name != "packimport.json":
            assert (tmp_path / "again" / path.name).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("name", sorted(REDECLARED))
def test_a_pack_that_declares_something_else_is_mended(name: str, tmp_path: Path) -> None:
    pack = shutil.copytree(PACKS / name, tmp_path / "pack")
    config = json.loads((pack / "config.json").read_text(encoding="utf-8"))
    block = config.get("rope_scaling") or config["rope_parameters"]
    assert block.keys() >= REDECLARED[name].keys()
    block.update(REDECLARED[name])
    (pack / "config.json").write_text(json.dumps(config), encoding="utf-8")
    report = check(pack)
    assert {f.code for f in report.findings} == {"RPE001"}
    out = tmp_path / "out"
    assert patch(pack, out).edits
    assert check(out).verdict == "ok"
    assert not changed_outside_tables(pack, out)


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_pack_is_copied(name: str, tmp_path: Path) -> None:
    patched = patch(PACKS / name, tmp_path / "out")
    assert patched.edits == ()
    assert not changed_outside_tables(PACKS / name, tmp_path / "out")


@pytest.mark.parametrize("name", sorted(VERDICTS))
def test_a_patched_pack_loads_and_runs(name: str, tmp_path: Path) -> None:
    patch(PACKS / name, tmp_path / "out")
    session = ort.InferenceSession(
        str(tmp_path / "out" / "model.onnx"), providers=["CPUExecutionProvider"]
    )
    config = json.loads((PACKS / name / "config.json").read_text(encoding="utf-8"))
    tokens = 5
    fed: dict[str, np.ndarray] = {}
    for value in session.get_inputs():
        if value.name == "position_ids":
            fed[value.name] = np.arange(tokens)[None]
        elif value.type == "tensor(int64)":
            fed[value.name] = np.ones((1, tokens), np.int64)
        else:
            heads, entries = config["num_key_value_heads"], config["head_dim"]
            dtype = np.float16 if value.type == "tensor(float16)" else np.float32
            fed[value.name] = np.zeros((1, heads, 0, entries), dtype)
    logits = session.run(["logits"], fed)[0]
    assert np.isfinite(logits).all()


def changed_outside_tables(before: Path, after: Path) -> list[str]:
    """Files whose bytes differ anywhere but in the spans that the manifest lists."""
    spans = json.loads((after / "packimport.json").read_text(encoding="utf-8"))["edits"]
    names = {path.name for path in before.iterdir()}
    assert {path.name for path in after.iterdir()} == names | {"packimport.json"}
    bad = []
    for name in sorted(names):
        old, new = (bytearray((folder / name).read_bytes()) for folder in (before, after))
        for span in spans:
            if span["file"] == name:
                there = slice(span["offset"], span["offset"] + span["length"])
                assert old[there] != new[there]
                old[there] = new[there] = bytes(span["length"])
        if old != new:
            bad.append(name)
    return bad
