"""Being asked to end, once or more often: one exception, and what cleans up goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from packimport.pack.signals import ended_by_signals, interruptible

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="needs signals"),
    pytest.mark.usefixtures("usual_signals"),
]

CLEANING = """
import sys, time
from packimport.pack.signals import ended_by_signals, interruptible
with ended_by_signals():
    try:
        with interruptible():
            print("ready", flush=True)
            for _ in range(600):
                time.sleep(0.1)
    finally:
        print("cleaning", flush=True)
        sys.stdin.readline()
        print("cleaned", flush=True)
"""


@pytest.mark.parametrize("first", ["SIGTERM", "SIGHUP"])
def test_others_that_come_at_once_or_while_it_cleans_up(first: str) -> None:
    for _ in range(5):
        with subprocess.Popen(
            [sys.executable, "-c", CLEANING],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        ) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            for name in (first, "SIGHUP", "SIGTERM"):
                child.send_signal(getattr(signal, name))
            assert child.stdout.readline() == b"cleaning\n"
            child.send_signal(signal.SIGTERM)
            out, err = child.communicate(b"\n", timeout=60)
        assert (out, err) == (b"cleaned\n", b"")
        assert child.returncode in {129, 143}


def test_the_block_gives_the_handlers_back() -> None:
    with pytest.raises(SystemExit) as caught, ended_by_signals(), interruptible():
        os.kill(os.getpid(), signal.SIGHUP)
        time.sleep(1)
    assert caught.value.code == 129
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGTERM, SystemExit), (signal.SIGINT, KeyboardInterrupt)]
)
def test_a_signal_waits_until_the_block_may_be_left(
    number: int, error: type[BaseException]
) -> None:
    done = []
    with pytest.raises(error), ended_by_signals():
        os.kill(os.getpid(), number)
        done.append("held back")
        with interruptible():
            done.append("not reached")
    with pytest.raises(error), ended_by_signals():
        os.kill(os.getpid(), number)
        done.append("to the end")
    assert done == ["held back", "to the end"]


def test_a_block_within_holds_back_for_itself() -> None:
    done = []
    with pytest.raises(SystemExit), ended_by_signals(), interruptible():
        with ended_by_signals():
            os.kill(os.getpid(), signal.SIGTERM)
            done.append("inner")
        done.append("not reached")
    assert done == ["inner"]


def test_an_exception_that_is_lost_comes_again() -> None:
    """Python drops one that is raised while an object is destroyed."""

    class Asking:
        def __del__(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

    lost = []
    hook, sys.unraisablehook = sys.unraisablehook, lambda given: lost.append(given.exc_type)
    try:
        with pytest.raises(SystemExit) as caught, ended_by_signals(), interruptible():
            Asking()
    finally:
        sys.unraisablehook = hook
    assert (lost, caught.value.code) == ([SystemExit], 143)


def test_one_request_says_nothing_of_the_next_block() -> None:
    with pytest.raises(KeyboardInterrupt), ended_by_signals():
        os.kill(os.getpid(), signal.SIGINT)
    with ended_by_signals(), interruptible():
        pass
    with interruptible(), pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)


def test_a_handler_of_the_caller_stays() -> None:
    def own(*_: object) -> None: ...

    before = signal.signal(signal.SIGTERM, own)
    try:
        with ended_by_signals():
            assert signal.getsignal(signal.SIGTERM) is own
            assert signal.getsignal(signal.SIGHUP) is not signal.SIG_DFL
    finally:
        signal.signal(signal.SIGTERM, before)


def test_other_threads_have_no_handlers() -> None:
    seen = []

    def work() -> None:
        with ended_by_signals():
            seen.append(signal.getsignal(signal.SIGHUP))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [signal.SIG_DFL]


def test_a_signal_while_the_handlers_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The block ends whole, so that the next one handles signals, too."""
    real = signal.signal

    def setting(number: int, handler: Any) -> Any:
        before = real(number, handler)
        if handler is signal.default_int_handler:
            os.kill(os.getpid(), signal.SIGINT)
        return before

    with monkeypatch.context() as patched:
        patched.setattr(signal, "signal", setting)
        with pytest.raises(KeyboardInterrupt), ended_by_signals():
            pass
    with ended_by_signals():
        assert signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL
