"""Limited: a process of its own for what strangers wrote, with limits of time and memory.

A chat template is a program; a tokenizer.json holds patterns and tables that a native
library obeys. Both run in `limited_process.py`, which is ended when a job takes too long,
and which takes no more memory than it is given, where the system knows such limits
(Windows does not by this way: there only the time is bounded).
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from packimport.errors import DependencyError, DocumentError

# A tokenizer.json of 31 MB with 500 000 merges takes 430 MB and 4 seconds.
MEMORY = 1 << 30
_MAX_ANSWER = 1 << 26
_WATCH_SECONDS = 0.1
_SCRIPT = Path(__file__).with_name("limited_process.py")


class Limited:
    """A process that does jobs of one kind; it is started by the first one.

    library: what the jobs import. name: what runs in it, for errors.
    place:   the file that it comes from. missing: the error where there is no library.
    """

    def __init__(
        self, library: str, name: str, missing: DependencyError, place: str | None = None
    ) -> None:
        self._library = library
        self._name = name
        self._missing = missing
        self._place = place
        self._child: subprocess.Popen[bytes] | None = None
        self._turn = threading.Lock()

    @property
    def is_running(self) -> bool:
        """Whether it was started, and did not end."""
        return self._child is not None

    def ask(self, job: str, seconds: int, **given: object) -> Any:
        """The result of a job, as JSON has it; one job at a time, whatever threads ask.

        Raises DependencyError without the library; DocumentError where the job fails, takes
        longer than `seconds`, or more memory than there is for it.
        """
        with self._turn:
            return self._asked(job, seconds, given)

    def _asked(self, job: str, seconds: int, given: Mapping[str, object]) -> Any:
        child = self._child or self._start()
        request = json.dumps({"job": job, "seconds": seconds, **given}).encode() + b"\n"
        watch = self._watch
        watch.deadline = time.monotonic() + seconds
        try:
            line = _exchange(child, request)
        except BaseException:
            self.close()
            raise
        watch.deadline = math.inf
        if watch.expired or not line.endswith(b"\n"):
            raise self._ended(child, seconds if watch.expired else None, len(line))
        answer = json.loads(line)
        if "fault" in answer:
            reason = " ".join(answer["fault"].split())
            raise DocumentError(f"{self._name} fails: {reason}", place=self._place)
        return answer["result"]

    def close(self) -> None:
        """End the process. The next job starts another one."""
        if self._child is not None:
            self._end()
            self._child = None

    def _start(self) -> subprocess.Popen[bytes]:
        found = importlib.util.find_spec(self._library)
        if found is None or found.origin is None:
            raise self._missing
        child = subprocess.Popen(
            [
                # Isolated, so the folder where this process would find the library is named.
                *(sys.executable, "-I", str(_SCRIPT)),
                *(str(Path(found.origin).parent.parent), str(MEMORY)),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            # Threads of the library would each ask for room.
            env={**os.environ, "TOKENIZERS_PARALLELISM": "false"},
        )
        self._child = child
        self._watch = _Watch(child)
        self._watch.start()
        self._end = weakref.finalize(self, _end, child, self._watch)
        return child

    def _ended(
        self, child: subprocess.Popen[bytes], seconds: int | None, size: int
    ) -> DocumentError:
        """The error for a process that gave no whole answer."""
        self.close()
        if seconds is not None:
            return self._error(f"{self._name} did not end within {seconds} seconds")
        if size >= _MAX_ANSWER:
            return self._error(f"{self._name} answers with more than {_MAX_ANSWER} bytes")
        return self._error(
            f"{self._name} takes more than {MEMORY >> 20} MiB of memory, or breaks what runs it"
            f" (exit code {child.returncode})"
        )

    def _error(self, message: str) -> DocumentError:
        return DocumentError(message, place=self._place, fix="Don't trust that pack.")


class _Watch(threading.Thread):
    """Kills a process once its deadline is over; one thread, as a job may take microseconds."""

    def __init__(self, child: subprocess.Popen[bytes]) -> None:
        super().__init__(daemon=True)
        self.stop = threading.Event()
        self.deadline = math.inf  # of time.monotonic
        self.expired = False
        self._child = child

    def run(self) -> None:
        """Until `stop`, or the kill."""
        while not self.stop.wait(_WATCH_SECONDS):
            if time.monotonic() > self.deadline:
                self.expired = True
                self._child.kill()
                return


def _exchange(child: subprocess.Popen[bytes], request: bytes) -> bytes:
    """The line that answers a request; without its end where the process ended."""
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        child.stdin.write(request)
        child.stdin.flush()
        return child.stdout.readline(_MAX_ANSWER)
    except OSError:  # its end of the pipe is closed
        return b""


def _end(child: subprocess.Popen[bytes], watch: _Watch) -> None:
    child.kill()
    watch.stop.set()
    watch.join()
    for pipe in (child.stdin, child.stdout):
        assert pipe is not None
        # What was not written has no reader.
        with suppress(OSError):
            pipe.close()
    child.wait()
