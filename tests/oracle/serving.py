"""The commands, each in a process of its own, as users run them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
COUNT = 1500  # tokens of made/tokens.npy


def command(module: str, *args: object) -> tuple[int, str]:
    """Exit code and standard output of a command in a process of its own."""
    words = [sys.executable, "-m", module, *map(str, args)]
    done = subprocess.run(words, capture_output=True, encoding="utf-8", cwd=ROOT, check=False)
    assert done.returncode < 2, done.stderr
    return done.returncode, done.stdout


def succeed(module: str, *args: object) -> str:
    code, out = command(module, *args)
    assert code == 0, out
    return out
