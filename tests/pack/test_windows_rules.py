"""Patch, undo and copy on a disk by the rules of Windows; see windows_rules.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from faulty_disk import FILES, NEW, duplicate
from little_packs import contents, make_pack, manifest_of, names_in

import packimport
from packimport.pack.container import open_container
from packimport.pack.documents import json_text
from packimport.pack.journal import FOLDER
from packimport.pack.lock import LOCK_FILE
from packimport.pack.manifest import MANIFEST, read_manifest
from packimport.pack.verification import verify

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
THIRD = "folder/third.onnx"


def run(root: Path, *steps: str) -> list[str]:
    places = [str(Path(packimport.__file__).parents[1]), str(Path(__file__).parent)]
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("windows_rules.py")), str(root), *steps],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
    )
    assert done.returncode == 0, done.stderr
    said: list[str] = json.loads(done.stdout)
    # Windows removes it when its last handle closes.
    (root / LOCK_FILE).unlink(missing_ok=True)
    return said


@pytest.fixture(params=[0o644, 0o444], ids=["plain", "read-only"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A pack whose graph, which is made anew, may be marked read-only."""
    files = {**FILES, MANIFEST: json_text(manifest_of(()).to_dict()).encode()}
    root = make_pack(tmp_path / "p", files)
    for name in (THIRD, MANIFEST):
        (root / name).chmod(request.param)
    return root


def test_the_rules_hold(tmp_path: Path) -> None:
    """The rules themselves, by a run that breaks each."""
    script = """
import os, sys
from pathlib import Path
import windows_rules
windows_rules.obey()
root = Path(sys.argv[1])
(root / "folder").mkdir()
file = (root / "folder" / "open").open("w")
(root / "marked").write_text("x")
(root / "marked").chmod(0o444)
(root / "other").write_text("x")
for act in (
    lambda: (root / "folder" / "open").unlink(),
    lambda: (root / "folder").rename(root / "new"),
    lambda: (root / "marked").unlink(),
    lambda: (root / "other").replace(root / "marked"),
    lambda: (root / "other").rename(root / "marked"),
):
    try:
        act()
        print("done")
    except OSError as error:
        print(getattr(error, "winerror", 183))
sys.platform = "linux"
"""
    places = [str(Path(packimport.__file__).parents[1]), str(Path(__file__).parent)]
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
    )
    assert done.stdout.split() == ["32", "32", "5", "5", "183"]


def test_patch_and_undo(root: Path) -> None:
    before = contents(root)
    assert run(root, "patch") == ["done"]
    patched = contents(root)
    assert patched[THIRD].startswith(b"another")
    assert patched["model.onnx.data"][7 : 7 + len(NEW)] == NEW
    assert run(root, "undo") == ["done"]
    assert contents(root) == before
    assert not (root / FOLDER).exists()


def test_a_copy(root: Path) -> None:
    assert run(root, "copy") == ["done"]
    out = root.with_name("p.out")
    container = open_container(out)
    manifest = read_manifest(container)
    assert manifest is not None
    assert verify(container, manifest).ok
    assert (out / THIRD).stat().st_mode == (root / THIRD).stat().st_mode
    assert names_in(root.parent) == ["p", "p.out"]


def test_a_run_that_did_not_end_is_restored(root: Path) -> None:
    """Every state that `undo` or `recover` meet: the journal is called unfinished again."""
    before = contents(root)
    assert run(root, "patch") == ["done"]
    (root / FOLDER / "0001.json").rename(root / FOLDER / "journal.json")
    half = duplicate(root, root.with_name("half"))
    for step in ("recover", "undo"):
        duplicate(half, root)
        assert run(root, step) == ["done"]
        assert contents(root) == before


def test_two_at_once(root: Path) -> None:
    import fcntl

    with (root / LOCK_FILE).open("w") as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
        (said,) = run(root, "patch")
    assert "another packimport is at work on this pack" in said
