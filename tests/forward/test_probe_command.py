"""`forward-serve --probe`: its report as text and JSON, its refusals, and what it leaves alone."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from builders import plain, tiny_pack, write_json
from probing import PACKS, PAIRS, ROWS, WRONG, llama3_pack

from forward import cli
from forward.probe import probe
from forward.probe_report import SCHEMA, VALUES
from packimport.audit.audit import check
from packimport.pack.documents import validate
from packimport.wrapping import wrapped


def ended(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as caught:
        cli.main([str(arg) for arg in args])
    assert isinstance(caught.value.code, int)
    return caught.value.code, *capsys.readouterr()


def test_the_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pack = llama3_pack(tmp_path, plain(ROWS, PAIRS))
    code, out, err = ended(capsys, pack, "--probe")
    assert (code, err) == (1, "")
    lines = out.splitlines()
    assert lines[0] == f"{pack}: wrong"
    assert "    rotates   GroupQueryAttention in layers 0-1; float32" in lines
    assert "    verdict   wrong, from position 1 on" in lines
    # What the check says is to be done stands at the end, once.
    (found,) = check(pack).findings
    assert lines[-2:] == [
        "  what to do, by the checks of packimport:",
        f"    {found.code:<10}{found.fix}",
    ]

    # Folded, a value goes on below its beginning.
    folded = wrapped(out, 80, values=VALUES).splitlines()
    (index,) = (i for i, line in enumerate(folded) if line.startswith("    declared  "))
    assert folded[index + 1].startswith(" " * len("    declared  ") + "original_max")

    code, out, err = ended(capsys, pack, "--probe", "--format", "json")
    assert (code, err) == (1, "")
    document = json.loads(out)
    validate(document, SCHEMA, "out")
    (site,) = document["sites"]
    assert (document["verdict"], site["verdict"]) == ("wrong", "wrong")
    assert site["max_abs_error"] > site["allowed"]
    assert site["worst_position"] in site["positions"]


@pytest.mark.parametrize("name", sorted(WRONG))
def test_every_report_obeys_its_schema(name: str, tmp_path: Path) -> None:
    validate(probe(llama3_pack(tmp_path, WRONG[name][0]())).to_dict(), SCHEMA, "out")


def test_reports_with_gaps_obey_the_schema() -> None:
    found = probe(PACKS / "oga-0.11.2-smollm3")
    assert found.gaps
    validate(found.to_dict(), SCHEMA, "out")
    assert "not probed" in found.text()
    assert "RPE016    packimport patch CONTAINER -o OUT takes the nodes" in found.text()


def test_a_right_pack_needs_nothing_done(tmp_path: Path) -> None:
    assert "what to do" not in probe(PACKS / "oga-0.18.0-qwen3").text()


def test_a_refusal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pack = tiny_pack(tmp_path / "p")
    code, out, err = ended(capsys, pack, "--probe", "--format", "json")
    assert code == 3
    validate(json.loads(out), SCHEMA, "out")
    assert "Name the source model's config.json with --config" in err
    assert err.count("\n") == 1
    code, out, err = ended(capsys, pack, "--probe", "--model", "nobody/knows")
    assert (code, out) == (2, "")
    assert "nobody/knows" in err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--probe", "--prompt", "x"], "--probe runs nothing of the pack"),
        (["--probe", "--ep", "cuda"], "--probe runs nothing of the pack"),
        (["--probe", "--allow-custom-ops", "00"], "--probe runs nothing of the pack"),
        (["--probe", "--self-check"], "do one thing at a time"),
        (["--probe", "--config", "a", "--model", "b"], "both declare the schedule"),
        (["--self-check", "--config", "a"], "--config belongs to --probe"),
        (["--self-check", "--format", "json"], "--format json belongs to --probe"),
    ],
)
def test_wrong_usage_of_the_probe(
    args: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = ended(capsys, tiny_pack(tmp_path / "p"), *args)
    assert (code, out) == (2, "")
    assert message in err


def test_no_library_of_the_pack_is_touched(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pack = tiny_pack(tmp_path / "p", config={})
    genai = json.loads((pack / "genai_config.json").read_text("utf-8"))
    options = genai["model"]["decoder"]["session_options"]
    options |= {"custom_ops_library": "evil.dll", "custom_allocator": "evil"}
    genai["model"]["decoder"]["pipeline"] = [
        {"all": {"filename": "model.onnx", "session_options": {"custom_ops_library": "evil.dll"}}}
    ]
    write_json(pack / "genai_config.json", genai)
    (pack / "evil.dll").write_bytes(b"not a library")
    assert ended(capsys, pack, "--probe")[0] == 0


def test_without_onnxruntime(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    code, out, err = ended(capsys, tiny_pack(tmp_path / "p", config={}), "--probe")
    assert (code, out) == (3, "")
    assert "pip install onnxruntime" in err
