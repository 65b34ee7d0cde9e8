"""Attempts: the real commands on a hostile pack, watched.

Every file that is opened, every library and process is seen by an audit hook of the
interpreter: nothing outside the pack may be read, nothing but a new output written,
nothing run.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import os
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from builders import tiny_pack

# Everything that a check or a patch imports, so that the watch sees no imports.
import packimport.audit.audit
import packimport.audit.report
import packimport.cli
import packimport.patching
import packimport.progress_bar

ROOT = Path(__file__).parent.parent.parent
# Python's own files, and ours: modules that are imported late, and schemas.
OURS = tuple(
    os.path.realpath(path)
    for path in (sys.prefix, sys.base_prefix, ROOT / "packimport", ROOT / "schemas")
)
RUNS = (
    "subprocess.",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "ctypes.dlopen",
    "socket.",
)
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
# Far above what a refusal takes, also beside other work (7 seconds at a load of 4), far below
# what a bomb would.
SECONDS = 60


@dataclass
class Watch:
    """What an audit hook saw that must not be."""

    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    active: bool = False
    crimes: list[str] = field(default_factory=list)

    def see(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.active:
            return
        if event == "open" and not isinstance(args[0], int):
            path = os.path.realpath(os.fsdecode(args[0]))
            if not Path(os.fsdecode(args[0])).is_absolute() and not Path(path).exists():
                return  # relative to an open folder: shutil removes what was unpacked
            areas = self.writable if args[2] & WRITES else (*self.readable, *self.writable, *OURS)
            if not any(path == area or path.startswith(area + os.sep) for area in areas):
                self.crimes.append(f"{event} {args[0]} {args[2]:#x}")
        elif event.startswith(RUNS):
            self.crimes.append(f"{event} {args}")


WATCH = Watch()
sys.addaudithook(WATCH.see)


@contextlib.contextmanager
def watched(readable: list[Path], writable: list[Path]) -> Iterator[Watch]:
    """Fails where the block opens, runs or loads what it must not."""
    WATCH.readable = tuple(os.path.realpath(path) for path in readable)
    WATCH.writable = tuple(os.path.realpath(path) for path in writable)
    WATCH.crimes, WATCH.active = [], True
    try:
        yield WATCH
    finally:
        WATCH.active = False
    assert WATCH.crimes == []


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


def command(*args: str | Path) -> Outcome:
    """`packimport` with these arguments, in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            packimport.cli.main([str(arg) for arg in args])
        except SystemExit as end:
            code = end.code
    assert isinstance(code, int)
    return Outcome(code, out.getvalue(), err.getvalue())


def state_of(path: Path) -> dict[str, object]:
    """Everything at `path`, by name: kind, size, bytes of files, targets of links."""
    found: dict[str, object] = {}
    for entry in [path, *sorted(path.rglob("*"))] if path.is_dir() else [path]:
        info = entry.lstat()
        content: object = None
        if stat.S_ISLNK(info.st_mode):
            content = str(entry.readlink())
        elif stat.S_ISREG(info.st_mode) and info.st_size < 2**30:
            content = hashlib.sha256(entry.read_bytes()).hexdigest()
        found[str(entry)] = (stat.S_IFMT(info.st_mode), info.st_size, info.st_mtime_ns, content)
    return found


def refused(pack: Path, *more: str | Path, reads: tuple[Path, ...] = ()) -> dict[str, Any]:
    """Check and patch a pack: both must refuse it; the error of the check.

    Also checked: exit code 3, one printable line on standard error, a JSON object on
    standard output, no change of the pack, no output, nothing left behind, bounded
    time, and what `watched` checks.
    """
    place = pack.parent
    scratch = Path(tempfile.mkdtemp(dir=tempfile.gettempdir()))
    before = state_of(place)
    began = time.monotonic()
    with pytest.MonkeyPatch.context() as patch, watched([pack, *reads], [scratch]):
        patch.setattr(tempfile, "tempdir", str(scratch))
        patch.setattr(sys, "dont_write_bytecode", True)
        checked = command("check", pack, "--format", "json", *more)
        mended = command("patch", pack, "-o", scratch / "out", "--format", "json", *more)
    assert time.monotonic() - began < SECONDS
    assert list(scratch.iterdir()) == []
    scratch.rmdir()
    assert state_of(place) == before
    for done in (checked, mended):
        assert done.code == 3, done
        assert done.err.count("\n") <= 1
        assert all(c.isprintable() or c == "\n" for c in done.err), done.err
        assert "fault of packimport" not in done.err
    report = json.loads(checked.out)
    assert report["verdict"] == "unsupported"
    if "error" in report:
        assert checked.err.startswith("packimport: error: ")
        error: dict[str, Any] = report["error"]
        return error
    first = next(f for f in report["findings"] if f["severity"] == "error")
    return {**first, "place": first["graph"]}


def sound_pack(folder: Path, **settings: Any) -> Path:
    """A pack whose check is ok: every case spoils one thing of it."""
    return tiny_pack(folder, config={}, **settings)
