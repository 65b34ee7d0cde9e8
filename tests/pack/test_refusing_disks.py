"""Real disks that are full or read-only, permissions that go, and two processes at once.

`patch -o` here; `--in-place` and `undo` in test_in_place.py, but for what needs a kill first.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from faulty_disk import FILES as STAGED
from faulty_disk import Disk, duplicate, snapshot
from little_packs import FILES, contents, edit_of, make_pack, manifest_of, names_in
from test_in_place import (
    DATA,
    NOBODY,
    PATCH,
    UNDO,
    fill,
    needs_root,
    other_process,
    patch,
    small_disk,
    span,
    stamps,
    take_back,
)
from test_in_place import reachable as reachable  # noqa: PLC0414  # a fixture

from packimport.errors import ContainerError
from packimport.pack.container import open_container
from packimport.pack.documents import json_text
from packimport.pack.journal import FOLDER, UNFINISHED
from packimport.pack.manifest import MANIFEST, read_manifest
from packimport.pack.verification import verify
from packimport.pack.writer import write_container

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs mounts, users or forks")
NEW = b"new bytes"
EDITED = FILES[DATA][:7] + NEW + FILES[DATA][7 + len(NEW) :]

COPY = """
def copy(**options):
    container = here.open_container(root)
    edit = little_packs.edit_of(little_packs.FILES[here.DATA], here.DATA, 7, b"new bytes")
    here.write_container(container, sys.argv[2], [edit], {"config.json": b"{}"}, **options)
try:
    %s
    print("done")
except ContainerError as error:
    print(error)
"""
PLAIN_COPY = COPY % "copy(make_manifest=little_packs.manifest_of)"


def copy(root: Path, out: Path) -> None:
    edit = edit_of(FILES[DATA], DATA, 7, NEW)
    write_container(open_container(root), out, [edit], {"config.json": b"{}"}, manifest_of)


def is_whole(out: Path) -> bool:
    """Whether `out` is there; then it is the new pack to the last byte."""
    if not os.path.lexists(out):
        return False
    container = open_container(out)
    manifest = read_manifest(container)
    assert manifest is not None
    assert verify(container, manifest).ok
    found = contents(out)
    del found[MANIFEST]
    assert found == {**FILES, DATA: EDITED, "config.json": b"{}"}
    return True


@contextmanager
def read_only(disk: Path) -> Iterator[None]:
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    try:
        yield
    finally:
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)


# kB; the copy takes about 100: its files have 80, in pages of 4, and each folder one.
@pytest.mark.parametrize("room", [0, 4, 8, 12, 16, 20, 40, 60, 80, 84, 88, 92, 96, 100, 104, 160])
def test_a_copy_onto_a_full_disk(tmp_path: Path, room: int) -> None:
    root = make_pack(tmp_path / "p")
    with small_disk(tmp_path / "disk") as disk:
        fill(disk / "filling", room << 10)
        if room < 80:
            with pytest.raises(ContainerError, match="the disk is full"):
                copy(root, disk / "out")
        elif room < 160:
            try:
                copy(root, disk / "out")
            except ContainerError as error:
                assert "the disk is full" in str(error)
        else:
            copy(root, disk / "out")
        there = is_whole(disk / "out")
        assert there == (room == 160) or 80 <= room < 160
        assert names_in(disk) == (["filling", "out"] if there else ["filling"])
        if not there:
            (disk / "filling").unlink()
            copy(root, disk / "out")
            assert is_whole(disk / "out")
    assert contents(root) == FILES


def test_a_disk_that_is_read_only(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        root = make_pack(disk / "p")
        patched = make_pack(disk / "patched")
        patch(patched)
        before = [snapshot(folder) for folder in (root, patched)]
        with read_only(disk):
            for act in (
                lambda: copy(root, disk / "out"),
                lambda: patch(root),
                lambda: take_back(patched),
            ):
                with pytest.raises(ContainerError, match="read-only"):
                    act()
            assert [snapshot(folder) for folder in (root, patched)] == before
            assert names_in(disk) == ["p", "patched"]
            # Read from there, written elsewhere.
            copy(root, tmp_path / "out")
        assert is_whole(tmp_path / "out")
        take_back(patched)
        assert contents(patched) == FILES


@pytest.mark.parametrize("at", [0.35, 0.5, 0.65, 0.8])
def test_a_disk_that_is_full_or_read_only_after_a_kill(tmp_path: Path, at: float) -> None:
    """What a killed run left half done is restored where there is no room at all."""
    runs = Disk()
    try:
        with small_disk(tmp_path / "disk") as disk:
            files = {**STAGED, MANIFEST: json_text(manifest_of(()).to_dict()).encode()}
            old = make_pack(tmp_path / "old", files)
            before = snapshot(old)
            root = duplicate(old, disk / "p")
            calls = runs.run("patch", root).calls
            assert calls is not None
            duplicate(old, root)
            assert runs.run("patch", root, at=int(calls * at)).killed
            half = snapshot(root)
            with read_only(disk):
                said = runs.run("recover", root).error
                assert snapshot(root) == half
                assert (said is not None) == (root / FOLDER).exists()
            fill(disk / "filling", 0)
            unfinished = (root / FOLDER / UNFINISHED).exists()
            assert runs.run("recover", root).error is None
            after = snapshot(root)
            if not unfinished:
                del after["."], before["."]
            assert after == before
    finally:
        runs.close()


@needs_root
@pytest.mark.parametrize("moment", ["before", "copying", "manifest", "inspect"])
def test_a_permission_that_is_lost_while_it_copies(reachable: Path, moment: str) -> None:
    """The folder of the output becomes read-only; once it is not, the next run clears up."""
    root, place = make_pack(reachable / "p"), reachable / "place"
    place.mkdir()
    os.chown(place, NOBODY, NOBODY)
    lose = "(__import__('os').chmod(sys.argv[2] + '/..', 0o555), None)[1]"
    act = {
        "before": f"{lose}; copy(make_manifest=little_packs.manifest_of)",
        "copying": f"copy(make_manifest=little_packs.manifest_of, on_progress=lambda *_: {lose})",
        "manifest": f"copy(make_manifest=lambda f: {lose} or little_packs.manifest_of(f))",
        "inspect": f"copy(make_manifest=little_packs.manifest_of, inspect=lambda _: {lose})",
    }[moment]
    # The parent by another way than through the output, which is not there.
    script = (COPY % act).replace("sys.argv[2] + '/..'", "sys.argv[3]")
    said = other_process(script, root, place / "out", place, user=NOBODY)
    assert "permission is denied" in said
    assert not (place / "out").exists()
    place.chmod(0o755)
    assert other_process(PLAIN_COPY, root, place / "out", user=NOBODY) == "done\n"
    assert names_in(place) == ["out"]
    assert is_whole(place / "out")
    assert contents(root) == FILES


@needs_root
def test_an_undo_whose_permission_is_lost(reachable: Path) -> None:
    root = reachable / "p"
    make_pack(root)
    for path in (root, *root.rglob("*")):
        os.chown(path, NOBODY, NOBODY)
    assert other_process(PATCH, root, user=NOBODY) == "done\n"
    patched = contents(root)
    (root / DATA).chmod(0o444)
    assert "permission is denied" in other_process(UNDO, root, user=NOBODY)
    # Not begun to the eye of a reader, or refused as unfinished: never a mixture.
    if (root / FOLDER / UNFINISHED).exists():
        with pytest.raises(ContainerError, match="did not end"):
            open_container(root)
    else:
        assert contents(root) == patched
    (root / DATA).chmod(0o644)
    assert other_process(UNDO, root, user=NOBODY) == "done\n"
    assert contents(root) == FILES


def run_together(scripts: list[str], root: Path, *more: object) -> list[str]:
    """What scripts print that start, in processes of their own, at the same moment."""
    here = Path(__file__).parent
    begin = f"import time\ntime.sleep(max(0, {time.time() + 1.5} - time.time()))\n"
    imports = (
        "import sys\nfrom pathlib import Path\nimport little_packs\n"
        "from packimport.errors import ContainerError\nimport test_in_place as here\n"
        "root = Path(sys.argv[1])\n"
    )
    path = os.pathsep.join([str(here), str(here.parents[1])])
    children = [
        subprocess.Popen(
            [sys.executable, "-c", imports + begin + script, str(root), *map(str, more)],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        for script in scripts
    ]
    return [child.communicate(timeout=60)[0].strip() for child in children]


def test_two_processes_write_one_output(tmp_path: Path) -> None:
    root = make_pack(tmp_path / "p")
    for number in range(3):
        out = tmp_path / f"out{number}"
        said = run_together([PLAIN_COPY] * 3, root, out)
        assert said.count("done") == 1
        others = [text for text in said if text != "done"]
        assert all("the output exists" in text or "by another program" in text for text in others)
        assert is_whole(out)
    assert names_in(tmp_path) == ["out0", "out1", "out2", "p"]


def test_two_processes_patch_and_take_back_one_pack(tmp_path: Path) -> None:
    root = make_pack(tmp_path / "p")
    before = {name: hashlib.sha256(data).hexdigest() for name, data in FILES.items()}
    for _ in range(3):
        said = run_together([PATCH, PATCH, UNDO], root)
        # Whoever comes first is at work; that may be the undo, which finds nothing to take back.
        assert not all("another packimport is at work" in text for text in said), said
        while (root / FOLDER).exists():
            take_back(root)
        found = {n: hashlib.sha256(data).hexdigest() for n, data in contents(root).items()}
        assert found == before


def test_a_copy_of_a_pack_that_is_patched_meanwhile(tmp_path: Path) -> None:
    """A copy that overlaps with a patch in place is refused, or is of the one pack."""
    root = make_pack(tmp_path / "p")

    def inspect() -> None:
        said = other_process(PLAIN_COPY, root, tmp_path / "out")
        assert "did not end" in said

    patch(root, [span(7, NEW)], inspect=inspect)
    assert not (tmp_path / "out").exists()
    stamped = stamps(root)
    with pytest.raises(ContainerError, match="not those that were checked"):
        copy(root, tmp_path / "out")
    assert stamps(root) == stamped
    assert names_in(tmp_path) == ["p"]
