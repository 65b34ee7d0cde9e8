"""A run that is killed leaves no output or the whole one, and nothing that stays."""

from __future__ import annotations

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from builders import plain, tiny_pack
from little_packs import FILES, contents, make_pack, manifest_of, names_in

import packimport
from packimport.pack.container import open_container
from packimport.pack.manifest import MANIFEST, read_manifest
from packimport.pack.verification import verify
from packimport.pack.workshop import PREFIX
from packimport.pack.writer import write_container

NEW = b"new bytes"
BIG = bytes(range(256)) * (4 << 12)
MOMENTS = ("copying", "manifest", "inspect")

WRITE = f"""
import os, signal, sys, threading, time
from little_packs import edit_of, manifest_of
from packimport.pack.container import open_container
from packimport.pack.writer import write_container

root, out = sys.argv[1:3]
container = open_container(root)
edits = [edit_of(container.read_bytes("model.onnx.data", 10**9), "model.onnx.data", 7, {NEW!r})]
make_manifest = manifest_of
"""

# Ends itself, as by SIGKILL, at the given call that changes the disk; prints
# how many there were if it comes to its end.
AT_A_CALL = (
    WRITE
    + """
from os_calls import set_call
limit, count, lock = int(sys.argv[3]), 0, threading.Lock()
def counted(real):
    def call(*arguments, **options):
        global count
        with lock:
            count += 1
            if count == limit:
                os.kill(os.getpid(), signal.SIGKILL)
        return real(*arguments, **options)
    return call
for name in ("mkdir open write copy_file_range sendfile fsync utime chmod rename replace "
             "unlink rmdir close").split():
    set_call(name, counted(getattr(os, name)))
write_container(container, out, edits, {"extra.json": b"{}"}, make_manifest)
print(count)
"""
)
AT_A_MOMENT = (
    WRITE
    + """
print("ready", flush=True)
write_container(container, out, edits, {"extra.json": b"{}"}, make_manifest)
"""
)
UNTIL_INTERRUPTED = (
    WRITE
    + """
from packimport.errors import ContainerError
moment = sys.argv[3]
def reached(now):
    if now == moment:
        print("ready", flush=True)
        for _ in range(600):  # a signal just before a sleep does not end it
            time.sleep(0.1)
def make_manifest(files):
    reached("manifest")
    return manifest_of(files)
write_container(
    container, out, edits, {"extra.json": b"{}"}, make_manifest,
    on_progress=lambda *_: reached("copying"), inspect=lambda _: reached("inspect"),
)
"""
)


def start(script: str, *arguments: object) -> subprocess.Popen[bytes]:
    places = [str(Path(packimport.__file__).parents[1]), str(Path(__file__).parent)]
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
    )


def expected(files: dict[str, bytes]) -> dict[str, bytes]:
    data = files["model.onnx.data"]
    return {
        **files,
        "model.onnx.data": data[:7] + NEW + data[7 + len(NEW) :],
        "extra.json": b"{}",
    }


def check(folder: Path, files: dict[str, bytes]) -> bool:
    """Whether `out` is there; then it is whole. The source is as it was."""
    out = folder / "out"
    assert contents(folder / "p") == files
    if not os.path.lexists(out):
        return False
    container = open_container(out)
    manifest = read_manifest(container)
    assert manifest is not None
    assert verify(container, manifest).ok
    found = contents(out)
    del found[MANIFEST]
    assert found == expected(files)
    shutil.rmtree(out)
    return True


def check_next_run(folder: Path) -> None:
    """The next run succeeds and takes away what the killed ones left."""
    write_container(open_container(folder / "p"), folder / "out", [], {}, manifest_of)
    assert names_in(folder) == ["out", "p"]


@pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
def test_killed_at_calls_that_change_the_disk(tmp_path: Path) -> None:
    def killed_at(call: int) -> tuple[int, bytes]:
        folder = tmp_path / str(call)
        child = start(AT_A_CALL, make_pack(folder / "p"), folder / "out", call)
        return child.wait(), child.communicate()[0]

    code, output = killed_at(0)
    calls = int(output)
    assert code == 0
    assert check(tmp_path / "0", dict(FILES))

    moments = sorted({*range(1, calls - 12, 4), *range(calls - 12, calls + 1)})
    outcomes = []
    for moment in moments:
        code, _ = killed_at(moment)
        # The threads of a run need not make the same calls each time.
        assert code in {-signal.SIGKILL, 0}
        folder = tmp_path / str(moment)
        left = any(name.startswith(PREFIX) for name in names_in(folder))
        outcomes.append((check(folder, dict(FILES)), left))
        check_next_run(folder)
    # Before the workshop, within it, and after the rename.
    assert {(False, False), (False, True), (True, True)} <= set(outcomes)


def test_killed_at_random_moments(tmp_path: Path) -> None:
    files = {**FILES, "big": BIG, **{f"many/{i}": bytes([i]) * 100 for i in range(20)}}
    root = make_pack(tmp_path / "p", files)
    begin = time.perf_counter()
    write_container(open_container(root), tmp_path / "out", [], {}, manifest_of)
    seconds = time.perf_counter() - begin
    shutil.rmtree(tmp_path / "out")
    for number in range(30):
        with start(AT_A_MOMENT, root, tmp_path / "out") as child:
            assert child.stdout is not None
            assert child.stdout.readline().strip() == b"ready"
            time.sleep(random.Random(number).uniform(0, 1.5 * seconds))
            child.kill()
        check(tmp_path, files)
    check_next_run(tmp_path)


ENDS = [
    *((number, moment) for number in ("SIGINT", "SIGTERM") for moment in MOMENTS),
    *(("SIGHUP", moment) for moment in MOMENTS),
    ("SIGTERM SIGHUP SIGTERM", "copying"),
]


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
@pytest.mark.parametrize(("numbers", "moment"), ENDS)
def test_being_asked_to_end_cleans_up(tmp_path: Path, numbers: str, moment: str) -> None:
    root = make_pack(tmp_path / "p")
    with start(UNTIL_INTERRUPTED, root, tmp_path / "out", moment) as child:
        assert child.stdout is not None
        assert child.stdout.readline().strip() == b"ready"
        assert len(names_in(tmp_path)) == 2
        first, *more = numbers.split()
        child.send_signal(getattr(signal, first))
        for name in more:
            child.send_signal(getattr(signal, name))
        code = child.wait(30)
        if first != "SIGINT":
            # A shell's code for the signal; where two came at once, either.
            assert code in {128 + getattr(signal, name) for name in numbers.split()}
        assert code != 0
    assert names_in(tmp_path) == ["p"]
    assert contents(root) == FILES


@pytest.mark.skipif(sys.platform == "win32", reason="needs signals")
def test_the_command_asked_to_end_at_random_moments(tmp_path: Path) -> None:
    pack = tiny_pack(tmp_path / "p", rows=4096, config={}, tables=plain(4096, 8, 500.0))
    before = contents(pack)
    command = [sys.executable, "-m", "packimport", "patch", str(pack), "-o", str(tmp_path / "out")]
    begin = time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    seconds = time.perf_counter() - begin
    whole = contents(tmp_path / "out")
    shutil.rmtree(tmp_path / "out")
    chance = random.Random(0)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT) * 3:
        with subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as child:
            time.sleep(chance.uniform(0.4, 1) * seconds)
            child.send_signal(number)
        assert contents(pack) == before
        # A signal that comes between the rename and the end finds a whole output.
        if child.returncode == 0 or (tmp_path / "out").exists():
            assert contents(tmp_path / "out") == whole
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        assert names_in(tmp_path) == ["p"]
