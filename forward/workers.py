"""Workers: this process and others of this Python, which share the work of a comparison.

Threads would take turns at the interpreter between numpy's calls, of which there is one in
some microseconds: two are hardly faster than one. A worker is `worker_process.py`, which gets
file names and ranges of rows, and answers with arrays.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Protocol

from forward.statistics import RowFigures
from forward.stretch import from_bytes
from packimport.rope.parallel import cores

# More would wait for the disk, and for memory.
_MOST = 4
_SCRIPT = Path(__file__).with_name("worker_process.py")
# Entries that are worth a process of their own: half a second of work.
SHARE = 1 << 26
# What an answer begins with, before its length: nothing else that is printed is one.
MARK = b"figures\0"


class Part(Protocol):
    """A part of the work."""

    def figures(self) -> RowFigures:
        """Do it here."""

    def request(self) -> Mapping[str, object] | None:
        """What another process needs to do it, as JSON; None where only this one can."""


def shared_out(parts: Sequence[Part], entries: int) -> Iterator[RowFigures]:
    """The figures of every part, in order.

    entries: of all parts together. Another process takes as long to start as some of the
    work, so that there is one more only for each SHARE of it.
    """
    count = max(1, min(_MOST, cores(), len(parts), entries // SHARE))
    with ExitStack() as stack:
        free: SimpleQueue[_Here | _Worker] = SimpleQueue()
        free.put(_Here())
        for _ in range(count - 1):
            free.put(stack.enter_context(_Worker()))

        def done(part: Part) -> RowFigures:
            worker = free.get()
            try:
                return worker.figures(part)
            finally:
                free.put(worker)

        with ThreadPoolExecutor(count) as pool:
            yield from pool.map(done, parts)


class _Here:
    """The worker that is this process."""

    def figures(self, part: Part) -> RowFigures:
        return part.figures()


class _Worker:
    """Another process, started by the first part that it is given.

    A part that it fails at is done here: so an error is the same one, whoever meets it.
    """

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self._failed = False

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *_: object) -> None:
        if self._child is not None:
            self._child.kill()
            for pipe in (self._child.stdin, self._child.stdout):
                assert pipe is not None
                with suppress(OSError):  # what was not written has no reader
                    pipe.close()
            self._child.wait()

    def figures(self, part: Part) -> RowFigures:
        request = part.request()
        if request is not None and not self._failed:
            try:
                return from_bytes(self._answer(request))
            except (OSError, EOFError, ValueError):
                self._failed = True
        return part.figures()

    def _answer(self, request: Mapping[str, object]) -> bytes:
        first = self._child is None
        child = self._child = self._child or _start()
        assert child.stdin is not None
        assert child.stdout is not None
        if first:
            folders = [folder for folder in sys.path if isinstance(folder, str)]
            child.stdin.write(json.dumps(folders).encode() + b"\n")
        child.stdin.write(json.dumps(request).encode() + b"\n")
        child.stdin.flush()
        head = child.stdout.read(len(MARK) + 8)
        if not head.startswith(MARK):
            raise ValueError("not an answer")
        return child.stdout.read(int.from_bytes(head[len(MARK) :], "little"))


def _start() -> subprocess.Popen[bytes]:
    """A worker, which imports from where it is told to, and from nowhere else."""
    if not sys.executable:
        raise OSError("this Python does not know where it lies, as one within another program")
    return subprocess.Popen(
        [sys.executable, "-I", str(_SCRIPT)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
