"""A patch in place or an undo that dies at any call leaves the old pack or the new one.

At most one recovery is between what the crash left and a pack that is byte by byte, and
in its times, the old one or the new one. `--kills=all` takes every call, not a sample.
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

if sys.platform == "win32":
    pytest.skip("needs fork and SIGKILL", allow_module_level=True)

from faulty_disk import FILES, Disk, Outcome, copy, duplicate, patch, recovered, snapshot
from little_packs import make_pack, manifest_of

from packimport.errors import ContainerError
from packimport.pack.container import open_container
from packimport.pack.documents import json_text
from packimport.pack.journal import FOLDER, UNFINISHED
from packimport.pack.manifest import read_manifest
from packimport.pack.verification import verify
from packimport.pack.workshop import PREFIX

Snapshot = dict[str, tuple[bytes, int, int]]


@dataclass(frozen=True)
class Stage:
    """A pack before and after a patch, and a place for copies of it."""

    folder: Path
    old: Path
    new: Path
    disk: Disk

    @property
    def states(self) -> tuple[Snapshot, Snapshot]:
        return snapshot(self.old), snapshot(self.new)


@pytest.fixture(scope="module")
def disk() -> Iterator[Disk]:
    disk = Disk()
    yield disk
    disk.close()
    print(f"\n{disk.kills} kills")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """In memory where that can be: what a killed process wrote is there all the same."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path_factory.mktemp("kills")
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder).resolve()


@pytest.fixture(scope="module")
def stage(folder: Path, disk: Disk) -> Stage:
    files = {**FILES, "packimport.json": json_text(manifest_of(()).to_dict()).encode()}
    old = make_pack(folder / "old", files)
    new = duplicate(old, folder / "new")
    patch(new)
    return Stage(folder, old, new, disk)


def moments(calls: int, everything: bool, sample: int) -> list[int]:
    """Every call, or a sample of them that holds the first and the last ones."""
    every = list(range(1, calls + 1))
    if everything or calls <= sample:
        return every
    middle = random.Random(0).sample(every[3:-6], sample - 9)
    return sorted([*every[:3], *middle, *every[-6:]])


def pack_of(state: Snapshot) -> dict[str, bytes]:
    """The files of the pack itself, without the journals."""
    return {name: data for name, (data, _, _) in state.items() if name.split("/")[0] != FOLDER}


def without_times(state: Snapshot) -> dict[str, tuple[bytes, int]]:
    return {name: (data, mode) for name, (data, _, mode) in state.items()}


def settle(root: Path, stage: Stage) -> str:
    """Let the next run recover, and say which pack there is; it must be one of the two."""
    old, new = stage.states
    found = pack_of(snapshot(root))
    if (root / FOLDER / UNFINISHED).exists():
        before = snapshot(root)
        with pytest.raises(ContainerError, match="packimport undo"):
            open_container(root)
        assert snapshot(root) == before
        recovered(root)
        assert snapshot(root) == old
        return "restored"
    # What an ordinary check reads is no mixture, even before anything is recovered.
    assert found in (pack_of(old), pack_of(new))
    recovered(root)
    after = snapshot(root)
    # The folder's own time is its last change's where there was nothing to take back.
    del after["."], old["."]
    if after == old:
        return "old"
    # New files have the time of their own run.
    del new["."]
    assert without_times(after) == without_times(new)
    return "new"


def start(stage: Stage, what: str) -> Path:
    return duplicate(stage.new if what == "undo" else stage.old, stage.folder / "p")


@pytest.mark.parametrize("how", ["kill", "half"])
@pytest.mark.parametrize("what", ["patch", "undo"])
def test_killed_at_every_call(stage: Stage, what: str, how: str, all_kills: bool) -> None:
    calls = stage.disk.run(what, start(stage, what)).calls
    assert calls is not None
    seen = set()
    for at in moments(calls, all_kills, 40):
        root = start(stage, what)
        assert stage.disk.run(what, root, at=at, how=how).killed
        seen.add(settle(root, stage))
    assert seen == {"old", "restored", "new"}


@pytest.mark.parametrize("what", ["patch", "undo"])
def test_killed_at_random_moments(stage: Stage, what: str, all_kills: bool) -> None:
    chance = random.Random(1)
    root = start(stage, what)
    begin = time.perf_counter()
    stage.disk.run(what, root)
    seconds = time.perf_counter() - begin
    for _ in range(150 if all_kills else 25):
        root = start(stage, what)
        stage.disk.run(what, root, after=chance.uniform(0, 1.5 * seconds))
        # Any of the three, as the machine's other work has it.
        settle(root, stage)


@pytest.mark.parametrize("what", ["patch", "undo"])
def test_killed_while_it_recovers(stage: Stage, what: str, all_kills: bool) -> None:
    calls = stage.disk.run(what, start(stage, what)).calls
    assert calls is not None
    broken = next(at for at in range(calls // 2, calls) if _breaks(stage, what, at))
    half_done = duplicate(stage.folder / "p", stage.folder / "half")
    steps = stage.disk.run("recover", duplicate(half_done, stage.folder / "p")).calls
    assert steps is not None
    for at in moments(steps, all_kills, 20):
        root = duplicate(half_done, stage.folder / "p")
        assert stage.disk.run("recover", root, at=at).killed, broken
        assert settle(root, stage) in ("restored", "old")


def _breaks(stage: Stage, what: str, at: int) -> bool:
    """Whether a kill at that call leaves an unfinished pack."""
    stage.disk.run(what, start(stage, what), at=at)
    return (stage.folder / "p" / FOLDER / UNFINISHED).exists()


@pytest.mark.parametrize("how", ["once", "always", "forbidden"])
@pytest.mark.parametrize("what", ["patch", "undo"])
def test_a_disk_that_refuses_at_every_call(
    stage: Stage, what: str, how: str, all_kills: bool
) -> None:
    calls = stage.disk.run(what, start(stage, what)).calls
    assert calls is not None
    failed = 0
    # Few calls of an undo need room: a sample could miss them.
    for at in moments(calls, all_kills or what == "undo", 30):
        root = start(stage, what)
        outcome = stage.disk.run(what, root, at=at, how=how)
        failed += outcome.error is not None
        state = settle(root, stage)
        if outcome.error is None:
            assert state == ("new" if what == "patch" else "old")
        elif how == "once" and what == "patch":
            # One fault: the run itself has put the pack back.
            assert state == "old", (at, outcome)
    assert failed


def test_killed_while_it_copies(stage: Stage, all_kills: bool) -> None:
    """The same for `patch -o`, with spans, additions and files made anew."""
    outcomes = set()

    def killed(**settings: float) -> Outcome:
        root = duplicate(stage.old, stage.folder / "p")
        outcome = stage.disk.run("copy", root, **settings)  # type: ignore[arg-type]  # passed on
        out = root.with_name("p.out")
        assert snapshot(root) == snapshot(stage.old)
        if out.exists():
            container = open_container(out)
            manifest = read_manifest(container)
            assert manifest is not None
            assert verify(container, manifest).ok
        outcomes.add(out.exists())
        _clear(stage.folder)
        return outcome

    begin = time.perf_counter()
    calls = killed().calls
    seconds = time.perf_counter() - begin
    assert calls is not None
    for at in moments(calls, all_kills, 30):
        killed(at=at)
    chance = random.Random(2)
    for _ in range(150 if all_kills else 10):
        killed(after=chance.uniform(0, seconds))
    assert outcomes == {True, False}


def _clear(folder: Path) -> None:
    """The next run takes the workshops of killed ones away."""
    out = folder / "p.out"
    if out.exists():
        duplicate(folder / "old", out)
    shutil.rmtree(out, ignore_errors=True)
    copy(duplicate(folder / "old", folder / "p"))
    shutil.rmtree(out)
    assert not [path for path in folder.iterdir() if path.name.startswith(PREFIX)]
