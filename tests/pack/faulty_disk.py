"""A disk that fails, or a process that is killed, at a chosen call; many times in a second.

`Disk` starts one process that has everything imported and forks a child for each
run, so that a run costs milliseconds. Run as a script, this file is that process.
"""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from little_packs import edit_of, manifest_of
from os_calls import set_call

import packimport
from packimport.errors import PackimportError
from packimport.pack.additions import Addition, Change, Replacement
from packimport.pack.container import Container, open_container
from packimport.pack.in_place import write_in_place
from packimport.pack.lock import locked
from packimport.pack.undo import recover, undo
from packimport.pack.writer import write_container

# Every call by which a run changes the disk, and those around them.
CALLS = (
    *("mkdir", "open", "write", "copy_file_range", "sendfile", "fsync", "ftruncate", "close"),
    *("utime", "chmod", "rename", "replace", "unlink", "rmdir"),
)
NEW = bytes(range(255, 0, -1)) * 30

FILES = {
    "genai_config.json": b"{}\n",
    "model.onnx": bytes(range(256)) * 40,
    "model.onnx.data": bytes(i * i % 251 for i in range(70_000)),
    "second.data": bytes(i % 249 for i in range(20_000)),
    "folder/third.onnx": b"a graph" * 500,
    "packimport.json": b"",
}


def changes_of(container: Container) -> list[Change]:
    """Two spans of one file, one span and an addition of another, and a file made anew."""
    first, second, third = (
        container.read_bytes(name, 10**6)
        for name in ("model.onnx.data", "second.data", "folder/third.onnx")
    )
    return [
        edit_of(first, "model.onnx.data", 7, NEW),
        edit_of(first, "model.onnx.data", 60_000, NEW),
        edit_of(second, "second.data", 19_000, NEW[:1000]),
        Addition(
            file="second.data",
            old_size=len(second),
            offset=len(second) + 100,
            new=NEW,
            reason="a longer table",
        ),
        Replacement(
            file="folder/third.onnx",
            old_size=len(third),
            old_sha256=edit_of(third, "", 0, third).old_sha256,
            pieces=(b"another", third[7:]),
            reason="a graph that reads it",
        ),
    ]


def patch(root: Path) -> None:
    with locked(root) as real:
        recover(real)
        container = open_container(real)
        write_in_place(
            container,
            changes_of(container),
            {"config.json": b'{"rope_theta": 10000.0}'},
            lambda files, _: manifest_of(files),
            inspect=lambda: None,
        )


def take_back(root: Path) -> None:
    with locked(root) as real:
        undo(real)


def recovered(root: Path) -> None:
    with locked(root) as real:
        recover(real)


def copy(root: Path) -> None:
    container = open_container(root)
    out = root.with_name(root.name + ".out")
    write_container(container, out, changes_of(container), {"config.json": b"{}"}, manifest_of)


RUNS: dict[str, Callable[[Path], None]] = {
    "patch": patch,
    "undo": take_back,
    "recover": recovered,
    "copy": copy,
}


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    killed: by the signal.
    calls:  how many calls it made; None where it was killed.
    error:  of packimport; None where there was none.
    """

    killed: bool
    calls: int | None
    error: str | None


class Disk:
    """A process that forks a child for each run."""

    def __init__(self) -> None:
        self.kills = 0
        places = [str(Path(packimport.__file__).parents[1]), str(Path(__file__).parent)]
        self.server = subprocess.Popen(
            [sys.executable, __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
        )

    def run(
        self,
        what: str,
        root: Path,
        *,
        at: int = 0,
        how: str = "kill",
        after: float | None = None,
    ) -> Outcome:
        """Run `what` on the pack in `root`.

        at:    number of the call that fails, from 1; 0 for none.
        how:   "kill" before the call; "half" of a write, then kill; "once" and "always"
               raise that the disk is full, at that call and at every later one;
               "forbidden" that permission is denied, from that call on.
        after: seconds until the process is killed.
        """
        asked = {"what": what, "root": str(root), "at": at, "how": how, "after": after}
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.write(json.dumps(asked) + "\n")
        self.server.stdin.flush()
        code, outcome = json.loads(self.server.stdout.readline())
        assert code in (0, -signal.SIGKILL), f"{what} ended with {code}, at call {at} ({how})"
        self.kills += code != 0
        return Outcome(**outcome)

    def close(self) -> None:
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.close()
        self.server.wait(10)
        self.server.stdout.close()


def snapshot(root: Path) -> dict[str, tuple[bytes, int, int]]:
    """Every file and folder in `root`, hidden or not, itself included: bytes, time, mode."""
    found = {}
    for path in (root, *root.rglob("*")):
        info = path.lstat()
        data = path.read_bytes() if path.is_file() else b""
        # The time of a folder below the top is that of its last rename.
        is_nested = path.is_dir() and path != root
        time_ns = 0 if is_nested else info.st_mtime_ns
        found[path.relative_to(root).as_posix()] = (data, time_ns, info.st_mode)
    return found


def duplicate(source: Path, target: Path) -> Path:
    """A copy with all times; those of the folders as well."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)
    return target


class _Counter:
    def __init__(self, at: int, how: str) -> None:
        self.at, self.how, self.count = at, how, 0
        self.lock = threading.Lock()

    def wrap(self, name: str) -> None:
        real = getattr(os, name)

        def call(*arguments: Any, **options: Any) -> Any:
            with self.lock:
                self.count += 1
                number = self.count
            if self.at and number >= self.at:
                self.fail(number, name, real, arguments)
            return real(*arguments, **options)

        set_call(name, call)

    def fail(self, number: int, name: str, real: Any, arguments: tuple[Any, ...]) -> None:
        first = number == self.at
        if self.how == "half" and first and name == "write":
            real(arguments[0], bytes(arguments[1])[: len(arguments[1]) // 2])
        if self.how in ("kill", "half") and first:
            os.kill(os.getpid(), signal.SIGKILL)
        # A disk that is full can still close files, remove them and look at them.
        takes_room = name in ("mkdir", "write", "copy_file_range", "fsync", "ftruncate")
        takes_room |= name == "open" and bool(arguments[1] & os.O_CREAT)
        if takes_room and (self.how == "always" or (self.how == "once" and first)):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        names_a_file = name in ("mkdir", "open", "rename", "replace", "unlink", "rmdir", "utime")
        if names_a_file and self.how == "forbidden":
            raise OSError(errno.EACCES, os.strerror(errno.EACCES))


def _child(asked: dict[str, Any], answer: int) -> None:
    counter = _Counter(asked["at"], asked["how"])
    write = os.write
    for name in CALLS:
        counter.wrap(name)
    error = None
    try:
        RUNS[asked["what"]](Path(asked["root"]))
    except PackimportError as caught:
        error = str(caught)
    write(answer, json.dumps({"calls": counter.count, "error": error}).encode())


def _serve() -> None:
    for line in sys.stdin:
        asked = json.loads(line)
        reading, answer = os.pipe()
        child = os.fork()
        if not child:
            code = 1
            try:
                _child(asked, answer)
                code = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        os.close(answer)
        if asked["after"] is not None:
            time.sleep(asked["after"])
            os.kill(child, signal.SIGKILL)
        with os.fdopen(reading, "rb") as stream:
            said = json.loads(stream.read() or b"{}")
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        outcome = {"calls": None, "error": None, **said, "killed": code != 0}
        print(json.dumps([code, outcome]), flush=True)


if __name__ == "__main__":
    random.seed(0)
    _serve()
