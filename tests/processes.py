"""Processes that tests start: whether they live, and how much memory they took."""

from __future__ import annotations

from pathlib import Path

PEAK = """
def peak():
    # The bytes that this process itself had at most: `resource` hands down the peak of the
    # one that started it, which may hide any growth.
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))
"""


def lives(process: int) -> bool:
    """Whether a process is there and has not ended; nobody may have asked for its exit code."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text(encoding="ascii")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in {"Z", "X"}
