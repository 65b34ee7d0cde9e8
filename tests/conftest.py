"""What every test may use: tests/ is on the path, for the builders of packs."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

sys.path.insert(0, str(Path(__file__).parent))


# The same examples each time, however slow the machine: whoever changes something else learns
# nothing from a new one. `--hypothesis-profile=default` looks for new ones.
hypothesis.settings.register_profile(
    "the same",
    deadline=None,
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("the same")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--kills", choices=("some", "all"), default="some", help="see test_*_kills.py")


def pytest_configure() -> None:
    # nohup, and a script with a job in the background, have signals ignored, also by the
    # programs that tests start and ask to end. A handler is not handed down to those.
    for name in ("SIGINT", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


@pytest.fixture(scope="session")
def all_kills(pytestconfig: pytest.Config) -> bool:
    """Whether to kill at every call, and not at a sample of them."""
    return bool(pytestconfig.getoption("--kills") == "all")


@pytest.fixture
def usual_signals() -> Iterator[None]:
    """The handlers of a program that was started neither with nohup nor in the background."""
    defaults = {"SIGINT": signal.default_int_handler, "SIGHUP": signal.SIG_DFL}
    before = {
        number: signal.signal(number, defaults.get(name, signal.SIG_DFL))
        for name in ("SIGINT", "SIGHUP", "SIGTERM")
        if (number := getattr(signal, name, None)) is not None
    }
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
