"""What a report advises, and how a patch says what it did."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from builders import plain
from graph.plain_graphs import PAIRS, PLAIN, by_where, decoder, gathered, twice, waves, write_pack

from packimport import check, patch
from packimport.dry_run import dry_run

WRONG = decoder(gathered(*(twice(part) for part in plain(64, PAIRS, 500.0))))
BARE = "packimport patch CONTAINER -o OUT writes"
TOLD = "packimport patch CONTAINER --config CONFIG -o OUT writes"


@pytest.fixture
def pack(tmp_path: Path) -> Path:
    return write_pack(tmp_path / "p", WRONG)


def test_advice_without_config(pack: Path) -> None:
    report = check(pack)
    fixes = {found["fix"] for found in json.loads(json.dumps(report.to_dict()))["findings"]}
    assert all(fix.startswith(BARE) for fix in fixes)
    assert fixes
    assert BARE in report.text()


def test_advice_repeats_config(pack: Path, tmp_path: Path) -> None:
    config = tmp_path / "config.json"
    (pack / "config.json").rename(config)
    report = check(pack, config=config)
    text = report.text()
    assert TOLD in text
    assert BARE not in text
    fixes = {found["fix"] for found in json.loads(json.dumps(report.to_dict()))["findings"]}
    assert all(fix.startswith(TOLD) for fix in fixes)
    assert fixes


def test_what_cos_and_sin_become_is_said_once(pack: Path, tmp_path: Path) -> None:
    planned = dry_run(pack, tmp_path / "out").text()
    patched = patch(pack, tmp_path / "out")
    assert len(patched.edits) == 2
    for text in (planned, patched.text()):
        assert text.count("becomes default") == 1
        assert text.count(": the same") == 1
    # The records say it of each.
    edits = json.loads((tmp_path / "out" / "packimport.json").read_text(encoding="utf-8"))["edits"]
    assert [edit["reason"].partition(" ")[2].count("becomes") for edit in edits] == [1, 1]


def test_different_reasons_are_all_said(tmp_path: Path) -> None:
    lists = {"short_factor": [1.0] * PAIRS, "long_factor": [2.0] * PAIRS}
    rope = {"rope_type": "longrope", "original_max_position_embeddings": 16, **lists}
    model = decoder(waves(by_where(PLAIN / 2, PLAIN, 16)))
    pack = write_pack(
        tmp_path / "p", model, model_type="phi3", original_max_position_embeddings=16,
        rope_scaling={**rope, "attention_factor": 1.0},
    )  # fmt: skip
    text = patch(pack, tmp_path / "out").text()
    assert "above 16" in text
    assert "up to 16" in text
    assert ": the same" not in text
