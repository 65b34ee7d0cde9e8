"""Measuring: seconds, peak memory and bytes written of whole processes, in alternating rounds."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

# Modules are compiled once, as those of an installed package are, in a place of their own.
_COMPILED = tempfile.TemporaryDirectory(prefix="packimport-benchmark-")
_ENVIRONMENT = {
    **{key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"},
    "PYTHONPYCACHEPREFIX": _COMPILED.name,
    "PYTHONPATH": str(Path(__file__).resolve().parents[1]),
}
PACKIMPORT = [sys.executable, "-m", "packimport"]


@dataclass(frozen=True)
class Figures:
    """Of one process and its children: wall and CPU time, peak memory, what reached the disk."""

    seconds: float
    cpu_seconds: float
    peak_mb: float
    written_mb: float


def run(command: list[str], allowed: tuple[int, ...] = (0,)) -> Figures:
    """Run a command to its end. Needs os.wait4 (not on Windows)."""
    start = time.perf_counter()
    child = subprocess.Popen(
        command,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=_ENVIRONMENT,
        cwd=_COMPILED.name,
    )
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - start
    child.returncode = os.waitstatus_to_exitcode(status)
    assert child.stderr is not None
    said = child.stderr.read().decode(errors="replace")
    child.stderr.close()
    if child.returncode not in allowed:
        raise SystemExit(f"exit {child.returncode}: {' '.join(command)}\n{said}")
    # ru_oublock counts blocks of 512 bytes, whatever the disk's are.
    return Figures(
        seconds,
        usage.ru_utime + usage.ru_stime,
        usage.ru_maxrss / 1024,
        usage.ru_oublock * 512 / 2**20,
    )


def peak_of_all(command: list[str]) -> float:
    """The largest sum of the memory of a command and its children, in MB, looked at each 5 ms.

    Pages that they share count for each of them. Needs /proc.
    """
    most = 0
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=_ENVIRONMENT) as child:
        while child.poll() is None:
            most = max(most, sum(_resident(pid) for pid in (child.pid, *_children(child.pid))))
            time.sleep(0.005)
    if child.returncode:
        raise SystemExit(f"exit {child.returncode}: {' '.join(command)}")
    return most * os.sysconf("SC_PAGE_SIZE") / 2**20


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with suppress(OSError):  # it has ended
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def _resident(pid: int) -> int:
    with suppress(OSError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return 0


def make_pack(folder: Path, shape: str, kind: str) -> tuple[int, ...]:
    """Run packs.py; bytes of data, and the offsets of the tables in them."""
    script = Path(__file__).with_name("packs.py")
    command = [sys.executable, str(script), str(folder), shape, kind]
    said = subprocess.run(command, check=True, stdout=subprocess.PIPE, env=_ENVIRONMENT).stdout
    return tuple(json.loads(said))


def python(script: str, *arguments: object) -> list[str]:
    """The command that runs a script of this Python."""
    return [sys.executable, "-c", script, *map(str, arguments)]


def rounds_of(steps: Mapping[str, Callable[[], Figures]], rounds: int) -> dict[str, Figures]:
    """Medians (the largest, of memory) of each step in alternating rounds, after a warm-up.

    Others may use the machine: the order of the steps turns with each round, so that a
    busy minute does not meet the same step each time.
    """
    seen: dict[str, list[Figures]] = {name: [] for name in steps}
    names = list(steps)
    for index in range(rounds + 1):
        for name in names[index % len(names) :] + names[: index % len(names)]:
            figures = steps[name]()
            if index:
                seen[name].append(figures)
    return {name: _middle(results) for name, results in seen.items()}


def show(seen: Mapping[str, Figures]) -> None:
    """Print a line for each step."""
    for name, figures in seen.items():
        print(
            f"{name:26}{figures.seconds:8.3f} s{figures.cpu_seconds:8.3f} s CPU"
            f"{figures.peak_mb:9.1f} MB peak{figures.written_mb:9.1f} MB written"
        )


def ratio(text: str, value: float, limit: str) -> None:
    """Print a line for a ratio and its limit."""
    print(f"{text:44}{value:7.3f}   limit {limit}")


@contextmanager
def scratch(folder: Path | None) -> Iterator[Path]:
    """A new folder in `folder`, or in the system's own for such; removed at the end."""
    with tempfile.TemporaryDirectory(dir=folder) as made:
        yield Path(made).resolve()


def load() -> str:
    """How busy the machine is: the load average of the last minute."""
    return f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"


def _middle(results: list[Figures]) -> Figures:
    return Figures(
        statistics.median(result.seconds for result in results),
        statistics.median(result.cpu_seconds for result in results),
        max(result.peak_mb for result in results),
        statistics.median(result.written_mb for result in results),
    )
