"""Archives through the commands: the same verdict as the folder, and a folder as the result."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from archives import FORMATS, archive_of, files_of

import packimport
from packimport.pack.manifest import MANIFEST

PACK = Path(__file__).parent / "packs" / "oga-0.11.2-llama3"


def packimport_command(*args: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "packimport", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, check=False, encoding="utf-8")


@pytest.fixture(params=FORMATS)
def archived(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    files = files_of(PACK, "the p\u00e4ck/")
    return archive_of(files, tmp_path / f"{'n' * 100} \u00fc.{request.param}")


def test_the_report_is_that_of_the_folder(archived: Path) -> None:
    found, expected = packimport.check(archived).to_dict(), packimport.check(PACK).to_dict()
    assert found["container"] == {
        **expected["container"],
        "path": str(archived),
        "format": archived.name.split(".", 1)[1],
    }
    assert {**found, "container": None} == {**expected, "container": None}


def test_semantics_are_read_from_an_archive(archived: Path) -> None:
    assert packimport.read_semantics(archived) == packimport.read_semantics(PACK)


def test_patch_writes_a_folder(archived: Path, tmp_path: Path) -> None:
    done = packimport_command("patch", archived, "-o", tmp_path / "out", "--format", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verdict"] == "ok"
    packimport.patch(PACK, tmp_path / "expected")
    found, expected = files_of(tmp_path / "out"), files_of(tmp_path / "expected")
    manifest = json.loads(found.pop(MANIFEST))
    assert manifest["source"] == {
        "path": str(archived),
        "format": archived.name.split(".", 1)[1],
    }
    assert manifest["files"] == json.loads(expected.pop(MANIFEST))["files"]
    assert found == expected
    assert {path.stat().st_nlink for path in (tmp_path / "out").rglob("*") if path.is_file()} == {1}
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        ["out", "expected", archived.name]
    )


def test_check_and_show_by_command(archived: Path) -> None:
    checked = packimport_command(archived)
    assert (checked.returncode, checked.stderr) == (1, "")
    assert "llama3 with original_max_position_embeddings 2048" in checked.stdout
    shown = packimport_command("show", archived)
    assert (shown.returncode, shown.stderr) == (0, "")


@pytest.mark.parametrize("command", [("patch", "--in-place"), ("undo",), ("verify",)])
def test_an_archive_is_not_written_into(command: tuple[str, ...], tmp_path: Path) -> None:
    archived = archive_of(files_of(PACK), tmp_path / "p.zip")
    before = archived.read_bytes()
    done = packimport_command(command[0], archived, *command[1:])
    assert done.returncode == 3
    assert archived.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["p.zip"]


def test_a_patch_that_is_refused_leaves_nothing(tmp_path: Path) -> None:
    archived = archive_of(files_of(PACK), tmp_path / "p.tar.gz")
    (tmp_path / "out").mkdir()
    # Cut short: so it is refused before it is unpacked.
    archived.write_bytes(archived.read_bytes()[:-100])
    for more in ((), ("--dry-run",)):
        done = packimport_command("patch", archived, "-o", tmp_path / "out", *more)
        assert done.returncode == 3
        assert "the output exists" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "p.tar.gz"]


def test_running_an_archive_names_the_way_to_a_folder(archived: Path) -> None:
    command = [sys.executable, "-m", "forward", archived, "--dump-logits", "out", "--prompt", "a"]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, encoding="utf-8", cwd=archived.parent
    )
    assert (done.returncode, done.stderr.count("\n")) == (3, 1)
    assert f"Run `packimport patch {archived} -o OUT`, and pass OUT." in done.stderr
    assert [path.name for path in archived.parent.iterdir()] == [archived.name]


def test_a_dry_run_writes_nothing(archived: Path, tmp_path: Path) -> None:
    done = packimport_command("patch", archived, "--dry-run", "-o", tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert "cos_cache" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == [archived.name]
    assert packimport_command("patch", archived, "--dry-run", "--in-place").returncode == 3
