"""Progress: how far the threads of one job are, and that they shall stop."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from typing import TypeVar

# Called with bytes done and bytes in all, in the caller's thread.
OnProgress = Callable[[int, int], None]

_REPORT_SECONDS = 0.1
_Job = TypeVar("_Job")
_Result = TypeVar("_Result")


class Stopped(Exception):
    """Raised in a thread whose work is no longer wanted."""


class Progress:
    """A counter of bytes that many threads add to.

    total: bytes in all.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0
        self._lock = threading.Lock()
        self._stopped = False

    def add(self, count: int) -> None:
        """Count `count` bytes more. Raises Stopped after `stop`."""
        with self._lock:
            self.done += count
        self.check()

    def stop(self) -> None:
        """Make every thread stop at its next step."""
        self._stopped = True

    def check(self) -> None:
        """Raise Stopped after `stop`."""
        if self._stopped:
            raise Stopped


def run(
    work: Callable[[_Job], _Result],
    jobs: Iterable[_Job],
    progress: Progress,
    on_progress: OnProgress | None = None,
) -> list[_Result]:
    """`work` of every job, in threads, in the order of `jobs`.

    Raises the first error of a job, after all threads have ended. An interrupt
    of the caller's thread stops them as well.
    """
    # More threads than processors: small files wait for the disk, not for them.
    workers = min(8, max(4, os.cpu_count() or 1))
    with ThreadPoolExecutor(workers) as pool:
        futures: list[Future[_Result]] = []
        try:
            futures.extend(pool.submit(work, job) for job in jobs)
            _watch(futures, progress, on_progress)
        finally:
            # Does nothing where all is well and done.
            progress.stop()
            for future in futures:
                future.cancel()
    _raise_first(futures)
    return [future.result() for future in futures]


def _watch(
    futures: Sequence[Future[_Result]], progress: Progress, on_progress: OnProgress | None
) -> None:
    """Report until all have ended or one has failed."""
    pending = set(futures)
    while pending:
        ended, pending = wait(pending, _REPORT_SECONDS, FIRST_EXCEPTION)
        if any(future.exception() for future in ended):
            return
        if on_progress is not None:
            on_progress(progress.done, progress.total)


def _raise_first(futures: Sequence[Future[_Result]]) -> None:
    """The error of the first job that failed by itself: others stopped because it did."""
    for future in futures:
        error = None if future.cancelled() else future.exception()
        if error is not None and not isinstance(error, Stopped):
            raise error
