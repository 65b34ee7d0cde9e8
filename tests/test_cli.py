"""The command: exit codes, streams, JSON by schema. Run as a process, as users do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from builders import plain, tiny_pack

from packimport.cli import main
from packimport.pack.documents import validate

PACKS = Path(__file__).parent / "packs"
ROOT = Path(__file__).parent.parent


def packimport(*args: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "packimport", *map(str, args)],
        check=False,
        capture_output=True,
        encoding="utf-8",
        cwd=ROOT,
        env={**os.environ, "PYTHONUTF8": "1", **environment},
    )


@pytest.mark.parametrize(
    ("name", "code"),
    [("oga-0.11.2-llama3", 1), ("oga-0.18.0-qwen3", 0), ("oga-0.18.0-longrope-if", 0)],
)
def test_exit_codes_and_json(name: str, code: int) -> None:
    done = packimport(PACKS / name, "--format", "json")
    assert done.returncode == code
    assert done.stderr == ""
    report = json.loads(done.stdout)
    validate(report, "report.schema.json", "stdout")
    assert report["container"]["path"] == str(PACKS / name)


def test_check_is_the_default_command() -> None:
    one, two = (packimport(*args, PACKS / "oga-0.18.0-qwen3") for args in ([], ["check"]))
    assert one.stdout == two.stdout
    assert one.returncode == two.returncode == 0


def test_text_names_what_is_baked_and_what_to_do() -> None:
    done = packimport(PACKS / "oga-0.11.2-llama3")
    assert "llama3 with original_max_position_embeddings 2048" in done.stdout
    assert "2 of 8" in done.stdout
    assert "packimport patch CONTAINER -o OUT" in done.stdout
    assert done.stderr == ""


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_refusal_is_one_line_and_exit_3(tmp_path: Path, form: str) -> None:
    done = packimport(tmp_path / "nothing here", "--format", form)
    assert done.returncode == 3
    assert len(done.stderr.splitlines()) == 1
    assert "nothing here" in done.stderr
    if form == "json":
        refusal = json.loads(done.stdout)
        validate(refusal, "report.schema.json", "stdout")
        assert refusal["verdict"] == "unsupported"
    else:
        assert done.stdout == ""


@pytest.mark.parametrize(
    "args", [[], ["--nonsense"], ["check"], ["patch", "x"], ["x", "--format", "xml"]], ids=str
)
def test_wrong_usage_is_exit_2(args: list[str]) -> None:
    done = packimport(*args)
    assert done.returncode == 2


def test_config_and_model_exclude_each_other(tmp_path: Path) -> None:
    pack = tiny_pack(tmp_path / "p")
    done = packimport(pack, "--config", pack, "--model", "x")
    assert done.returncode == 2
    assert "--model" in done.stderr


def test_patch_then_check(tmp_path: Path) -> None:
    out = tmp_path / "out"
    done = packimport("patch", PACKS / "oga-0.18.0-linear", "-o", out)
    assert (done.returncode, done.stderr) == (0, "")
    assert "65536 bytes" in done.stdout
    assert packimport(out).returncode == 0
    done = packimport("patch", PACKS / "oga-0.18.0-linear", "-o", out)
    assert done.returncode == 3
    assert "exists" in done.stderr


def test_quiet_prints_nothing(tmp_path: Path) -> None:
    done = packimport(PACKS / "oga-0.18.0-linear", "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (1, "", "")
    done = packimport("patch", PACKS / "oga-0.18.0-linear", "-o", tmp_path / "o", "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_dry_run_fits_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    with pytest.raises(SystemExit):
        main(["patch", str(PACKS / "oga-0.11.2-llama3"), "--dry-run"])
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) == 80
    # A line for each of the two hashes, whole.
    assert sum(line.startswith("    sha256 ") for line in lines) == 2
    assert sum(line.startswith("        becomes ") for line in lines) == 2


def test_a_fault_of_ours_is_exit_4_and_a_line(tmp_path: Path) -> None:
    script = (
        "import packimport.audit.audit as audit, packimport.cli as cli\n"
        "def broken(*_, **__): raise ZeroDivisionError('oh')\n"
        "audit.check = broken\n"
        f"cli.main([{str(tmp_path)!r}])"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 4
    assert len(done.stderr.splitlines()) == 1
    assert "ZeroDivisionError" in done.stderr


def test_names_from_strangers_do_not_reach_the_terminal_raw(tmp_path: Path) -> None:
    def rename(model: object) -> None:
        for node in model.graph.node:  # type: ignore[attr-defined]  # onnx's ModelProto
            if node.op_type == "GroupQueryAttention":
                node.name = "evil\x1b[31m"

    pack = tiny_pack(tmp_path / "p", tables=plain(64, 8, 500.0), config={}, change=rename)
    done = packimport(pack)
    assert done.returncode == 1
    assert "\x1b" not in done.stdout
    assert "evil\\x1b" in done.stdout


def test_show_names_the_place_of_every_field() -> None:
    done = packimport("show", PACKS / "oga-0.11.2-llama3")
    assert done.returncode == 0
    assert "config.json#/rope_scaling/factor" in done.stdout
    assert "65536 bytes of model.onnx.data at 164096" in done.stdout
    shown = json.loads(packimport("show", PACKS / "oga-0.11.2-llama3", "--format", "json").stdout)
    assert shown["semantics"]["ropes"][0]["rope"]["factor"] == 32.0


def test_show_lists_the_known_models() -> None:
    done = packimport("show", "--models")
    assert (done.returncode, done.stderr) == (0, "")
    assert "meta-llama/Meta-Llama-3.1-8B" in done.stdout.splitlines()
    listed = json.loads(packimport("show", "--models", "--format", "json").stdout)
    assert listed == done.stdout.splitlines()
    for arguments in ([], [PACKS / "oga-0.11.2-llama3", "--models"]):
        assert packimport("show", *arguments).returncode == 2


def test_output_survives_a_narrow_encoding() -> None:
    done = packimport(PACKS / "oga-0.11.2-llama3", PYTHONUTF8="0", PYTHONIOENCODING="ascii")
    assert done.returncode == 1
    assert "mismatch" in done.stdout


def test_explain_prints_the_section_of_a_code() -> None:
    done = packimport("explain", "RPE001")
    assert done.returncode == 0
    assert done.stdout.startswith("RPE001: the table is not the declared one\nCause. ")
    assert max(map(len, done.stdout.splitlines())) <= 80
    # One text, wherever the page breaks its lines.
    assert "short prompts look fine, long ones drift." in " ".join(done.stdout.split())
    assert packimport("explain", "RPE999").returncode == 2


@pytest.mark.skipif(os.name == "nt", reason="a shell of POSIX closes the stream")
def test_a_closed_output_is_no_fault_of_ours(tmp_path: Path) -> None:
    words = (
        f"{sys.executable} -m packimport patch {PACKS / 'oga-0.18.0-linear'} -o {tmp_path / 'o'}"
    )
    done = subprocess.run(
        ["sh", "-c", f"{words} >&-"], check=False, capture_output=True, encoding="utf-8", cwd=ROOT
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "o" / "packimport.json").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="file names of any bytes")
def test_a_folder_whose_name_is_no_utf8(tmp_path: Path) -> None:
    pack = tmp_path / os.fsdecode(b"bad\xff")
    shutil.copytree(PACKS / "oga-0.18.0-linear", pack)
    done = packimport("patch", pack, "-o", tmp_path / "out")
    assert (done.returncode, done.stderr) == (0, "")
    manifest = json.loads((tmp_path / "out/packimport.json").read_text(encoding="utf-8"))
    assert manifest["source"]["path"].endswith("bad\\udcff")
    assert packimport(tmp_path / "out").returncode == 0


def test_show_and_table_take_the_folder_of_a_model(tmp_path: Path) -> None:
    shutil.copy(PACKS / "oga-0.18.0-qwen3" / "config.json", tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    done = packimport("show", tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "default (theta 1000000)" in done.stdout
    assert packimport("table", tmp_path, "-o", tmp_path / "t.npz").returncode == 0
