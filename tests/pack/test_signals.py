"""Being asked to end, once or more often: one exception, and what cleans up goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

from packimport.pack.signals import ended_by_signals

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs signals")

CLEANING = """
import time
from packimport.pack.signals import ended_by_signals
with ended_by_signals():
    try:
        print("ready", flush=True)
        for _ in range(600):
            time.sleep(0.1)
    finally:
        time.sleep(0.3)
        print("cleaned", flush=True)
"""


@pytest.mark.parametrize("first", ["SIGTERM", "SIGHUP"])
def test_others_that_come_at_once_or_while_it_cleans_up(first: str) -> None:
    for _ in range(5):
        with subprocess.Popen(
            [sys.executable, "-c", CLEANING],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        ) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            for name in (first, "SIGHUP", "SIGTERM"):
                child.send_signal(getattr(signal, name))
            time.sleep(0.1)
            child.send_signal(signal.SIGTERM)
            out, err = child.communicate(timeout=60)
        assert (out, err) == (b"cleaned\n", b"")
        assert child.returncode in {129, 143}


@pytest.fixture(autouse=True)
def usual() -> Iterator[None]:
    """The handlers of a program that nobody started with nohup."""
    before = [
        (name, signal.signal(name, signal.SIG_DFL)) for name in (signal.SIGHUP, signal.SIGTERM)
    ]
    yield
    for name, handler in before:
        signal.signal(name, handler)


def test_the_block_gives_the_handlers_back() -> None:
    with pytest.raises(SystemExit) as caught, ended_by_signals():
        os.kill(os.getpid(), signal.SIGHUP)
        time.sleep(1)
    assert caught.value.code == 129
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


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
