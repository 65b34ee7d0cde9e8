"""Packs of real exporters, kept in tests/packs: each verdict is what its exporter's fault says.

What each release bakes was found by building it and comparing its table with
transformers (4.57.1 for 0.11.2, 5.24.0 for 0.18.0); tests/oracle repeats that.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from packimport import check, patch
from packimport.errors import PatchError

PACKS = Path(__file__).parent / "packs"

VERDICTS = {
    "oga-0.11.2-llama3": (1, ["llama3 with original_max_position_embeddings 2048"]),
    "amd-oga-0.7.0.1-llama3-int4-dml": (1, ["llama3 with original_max_position_embeddings 2048"]),
    "oga-0.18.0-linear": (1, ["default"]),
    "oga-0.11.2-gemma3": (1, ["default", "default"]),
    "oga-0.18.0-qwen3": (0, ["default"]),
    "oga-0.18.0-llama3-int4": (0, ["llama3"]),
    "oga-0.11.2-smollm3": (3, ["default"]),
    "oga-0.18.0-longrope-dml": (3, []),
    "oga-0.18.0-longrope-if": (3, []),
    "optimum-0.1.0-llama3": (3, []),
}
# Why a pack is refused: the node's op and a word of the reason.
REASONS = {
    "oga-0.11.2-smollm3": "position_ids",
    "oga-0.18.0-longrope-dml": "Add",
    "oga-0.18.0-longrope-if": "If",
    "optimum-0.1.0-llama3": "Cos",
}


def test_every_pack_has_a_verdict() -> None:
    assert {path.name for path in PACKS.iterdir()} == VERDICTS.keys()


@pytest.mark.parametrize("name", sorted(VERDICTS))
def test_verdict(name: str) -> None:
    report = check(PACKS / name)
    exit_code, labels = VERDICTS[name]
    assert report.exit_code == exit_code
    assert [judged.measurement.baked_as for judged in report.sites] == labels
    if name in REASONS:
        assert any(REASONS[name] in f.message for f in report.findings)


@pytest.mark.parametrize("name", sorted(n for n, (code, _) in VERDICTS.items() if code == 1))
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


@pytest.mark.parametrize("name", sorted(n for n, (code, _) in VERDICTS.items() if code == 3))
def test_a_refused_pack_is_not_patched(name: str, tmp_path: Path) -> None:
    with pytest.raises(PatchError, match="Nothing was written"):
        patch(PACKS / name, tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["oga-0.18.0-qwen3", "oga-0.18.0-llama3-int4"])
def test_a_right_pack_is_copied(name: str, tmp_path: Path) -> None:
    patched = patch(PACKS / name, tmp_path / "out")
    assert patched.edits == ()
    assert not changed_outside_tables(PACKS / name, tmp_path / "out")


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
