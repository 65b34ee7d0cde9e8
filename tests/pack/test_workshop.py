from __future__ import annotations

import errno
import sys
from pathlib import Path
from threading import Barrier, Thread

import pytest
from little_packs import FILES, contents, make_pack, manifest_of, names_in

from packimport.errors import ContainerError
from packimport.pack import workshop as module
from packimport.pack.container import open_container
from packimport.pack.manifest import MANIFEST
from packimport.pack.workshop import PREFIX, workshop
from packimport.pack.writer import write_container


def test_a_workshop_is_gone_when_its_block_ends(tmp_path: Path) -> None:
    with workshop(tmp_path) as pack:
        assert not pack.exists()
        make_pack(pack)
        assert pack.parent.parent == tmp_path
        assert pack.parent.name.startswith(PREFIX)
    assert names_in(tmp_path) == []


def test_the_workshop_of_a_living_run_stays(tmp_path: Path) -> None:
    with workshop(tmp_path) as first:
        make_pack(first)
        with workshop(tmp_path) as second:
            assert second.parent != first.parent
        assert contents(first) == FILES


def leftover(parent: Path, name: str = "dead") -> Path:
    """What a killed run leaves: a lock that nobody holds."""
    folder = parent / f"{PREFIX}{name}"
    make_pack(folder / "pack")
    (folder / "lock").write_bytes(b"")
    (folder / "pack" / "model.onnx").chmod(0o400)
    return folder


def test_the_workshops_of_dead_runs_are_removed(tmp_path: Path) -> None:
    leftover(tmp_path)
    leftover(tmp_path, "another")
    (tmp_path / f"{PREFIX}empty").mkdir()
    with workshop(tmp_path) as pack:
        assert names_in(tmp_path) == [pack.parent.name]


def test_what_is_no_workshop_stays(tmp_path: Path) -> None:
    (tmp_path / f"{PREFIX}file").write_bytes(b"mine")
    make_pack(tmp_path / f"{PREFIX}without a lock")
    make_pack(tmp_path / "other")
    before = contents(tmp_path)
    with workshop(tmp_path):
        pass
    assert contents(tmp_path) == before


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege on Windows")
def test_links_are_not_followed(tmp_path: Path) -> None:
    other = leftover(tmp_path / "elsewhere")
    parent = tmp_path / "here"
    parent.mkdir()
    (parent / f"{PREFIX}link").symlink_to(other)
    broken = leftover(parent)
    (broken / "lock").unlink()
    (broken / "lock").symlink_to(other / "lock")
    with workshop(parent):
        pass
    assert contents(other / "pack") == FILES
    assert contents(broken / "pack") == FILES


def test_on_a_disk_without_locks_nothing_is_taken_for_dead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(_: int) -> None:
        raise OSError(errno.ENOLCK, "no locks here")

    monkeypatch.setattr(module, "take", no_locks)
    dead = leftover(tmp_path)
    with workshop(tmp_path) as pack:
        assert names_in(tmp_path) == sorted([pack.parent.name, dead.name])
    assert names_in(tmp_path) == [dead.name]


def test_a_new_workshop_taken_for_dead_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run comes between the making of the folder and the taking of its lock."""
    real, made = module.take, []

    def take(lock: int) -> None:
        if not made:
            (folder,) = tmp_path.iterdir()
            made.append(folder)
            (folder / "lock").unlink()
            folder.rmdir()
        real(lock)

    monkeypatch.setattr(module, "take", take)
    with workshop(tmp_path) as pack:
        assert pack.parent != made[0]
        assert pack.parent.is_dir()
    assert names_in(tmp_path) == []


def test_two_runs_at_once_make_one_whole_output(tmp_path: Path) -> None:
    root = make_pack(tmp_path / "p")
    for number in range(10):
        out = tmp_path / f"out{number}"
        barrier = Barrier(2)
        outcomes: list[str] = []

        def run(tag: bytes, out: Path = out, barrier: Barrier = barrier) -> None:
            container = open_container(root)
            barrier.wait()
            try:
                write_container(container, out, [], {"tag": tag}, manifest_of)
                outcomes.append(tag.decode())  # noqa: B023  # used within the same round
            except ContainerError:
                outcomes.append("refused")  # noqa: B023  # used within the same round

        threads = [Thread(target=run, args=(tag,)) for tag in (b"one", b"two")]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(outcomes)[1:] in (["refused"], ["two"])
        assert outcomes.count("refused") == 1
        found = contents(out)
        del found[MANIFEST]
        (winner,) = {"one", "two"} & set(outcomes)
        assert found == {**FILES, "tag": winner.encode()}
    assert not [name for name in names_in(tmp_path) if name.startswith(PREFIX)]
