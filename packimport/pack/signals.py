"""Signals: being asked to end is one exception, raised where nothing is lost by it.

    with ended_by_signals(), workshop(parent) as folder, interruptible():
        ...

An exception may come between any two bytecodes: also when a folder was made and its
name not yet kept, or within what removes it. So a signal waits, but for the blocks
that say that they may be left at any moment.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

# Nothing can be done about SIGKILL.
_ASKED_TO_END = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")
_DEFAULTS = (signal.SIG_DFL, signal.default_int_handler)


class _Request:
    """What was asked of this process: handlers are the process's own, and so is this.

    number: the first signal that came, or 0. is_raised: its exception was raised; others
    must not end what cleans up after it. is_open: an exception may be raised now.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        self.is_watched = self.is_open = self.is_raised = False
        self.number = 0

    def handle(self, number: int, _frame: FrameType | None) -> None:
        self.number = self.number or number
        self.raise_if_open()

    def raise_if_open(self) -> None:
        if self.number and self.is_open and not self.is_raised:
            self.is_raised = True
            raise self.exception()

    def exception(self) -> BaseException:
        if self.number == signal.SIGINT:
            return KeyboardInterrupt()
        return SystemExit(128 + self.number)


_request = _Request()


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the block by SystemExit, with the exit code of a shell.

    They and SIGINT wait until the block is `interruptible`, or has ended. Where the
    caller handles one of them, or this is not the main thread, nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    if _request.is_watched:
        with _set_open(False):
            yield
        return
    _request.forget()
    kept = {}
    try:
        _request.is_watched = True
        for name in _ASKED_TO_END:
            number = getattr(signal, name, None)
            if number is not None and (handler := signal.getsignal(number)) in _DEFAULTS:
                kept[number] = handler
                signal.signal(number, _request.handle)
        yield
    finally:
        _request.is_watched = False
        # SIGINT last: its own handler raises, and all else must be done by then.
        for number, handler in reversed(kept.items()):
            signal.signal(number, handler)
    # Also where the exception was lost, as one that is raised within a destructor is.
    if _request.number:
        raise _request.exception()


@contextmanager
def interruptible() -> Iterator[None]:
    """Signals that `ended_by_signals` holds back end this block, at any moment of it.

    It is entered last, by the function that has what the block needs in `with` statements
    or behind `try`: a generator that yields from within it is not left by an exception that
    comes before its caller's block begins.
    """
    if threading.current_thread() is not threading.main_thread() or not _request.is_watched:
        yield
        return
    with _set_open(True):
        _request.raise_if_open()
        yield


@contextmanager
def _set_open(is_open: bool) -> Iterator[None]:
    before = _request.is_open
    _request.is_open = is_open
    try:
        yield
    finally:
        _request.is_open = before
    # What waited for the end of an inner block.
    _request.raise_if_open()
