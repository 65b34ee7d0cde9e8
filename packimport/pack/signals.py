"""Signals: being asked to end is an exception, so that what is temporary is removed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# SIGINT is KeyboardInterrupt already; nothing can be done about SIGKILL.
_ASKED_TO_END = ("SIGTERM", "SIGHUP", "SIGBREAK")


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the block by SystemExit, with the exit code of a shell.

    Where the caller handles one of them, or this is not the main thread, nothing
    is changed.
    """
    asked = False

    def end(number: int, _frame: FrameType | None) -> None:
        # A second one must not end what cleans up after the first. It is not SIG_IGN for that:
        # Python complains of a signal that waits while its handler goes, and may then lose the
        # SystemExit of the first.
        nonlocal asked
        if not asked:
            asked = True
            raise SystemExit(128 + number)

    kept = []
    if threading.current_thread() is threading.main_thread():
        for name in _ASKED_TO_END:
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, end)
                kept.append(number)
    try:
        yield
    finally:
        for number in kept:
            signal.signal(number, signal.SIG_DFL)
