"""Check and patch of a real pack, beside what a user would run instead. One run, ratios.

    python benchmarks/check.py PACK [--config CONFIG] [--rounds 7]

PACK is best the 540 MB fp32 pack of SmolLM2-135M. Every figure is of a whole
process: wall time (median of alternating rounds) and peak memory. Disk caches
are warm. Needs `cp` and `openssl`, and os.wait4 (not on Windows).
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

IMPORTS = [sys.executable, "-c", "import onnx, numpy"]
LOAD = [sys.executable, "-c", "import sys, onnx; onnx.load(sys.argv[1])"]
PACKIMPORT = [sys.executable, "-m", "packimport"]


def run(command: list[str], allowed: tuple[int, ...] = (0,)) -> tuple[float, float]:
    """Seconds and peak MB of one process."""
    start = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - start
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode not in allowed:
        raise SystemExit(f"exit {child.returncode}: {' '.join(command)}")
    return seconds, usage.ru_maxrss / 1024


def rounds_of(
    steps: dict[str, Callable[[], tuple[float, float]]], rounds: int
) -> dict[str, tuple[float, float]]:
    """Median seconds and largest peak of each step, in alternating rounds after a warm-up."""
    seen: dict[str, list[tuple[float, float]]] = {name: [] for name in steps}
    for index in range(rounds + 1):
        for name, step in steps.items():
            result = step()
            if index:
                seen[name].append(result)
    return {
        name: (statistics.median(s for s, _ in results), max(m for _, m in results))
        for name, results in seen.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pack", type=Path)
    parser.add_argument("--config", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    config = ["--config", str(options.config)] if options.config else []
    files = [str(path) for path in sorted(options.pack.rglob("*")) if path.is_file()]
    graph = next(name for name in files if name.endswith(".onnx"))

    with tempfile.TemporaryDirectory(dir=options.pack.parent) as scratch:
        copy, out = Path(scratch, "copy"), Path(scratch, "out")

        def fresh(target: Path, command: list[str]) -> Callable[[], tuple[float, float]]:
            def step() -> tuple[float, float]:
                shutil.rmtree(target, ignore_errors=True)
                os.sync()
                return run(command)

            return step

        seen = rounds_of(
            {
                "import onnx, numpy": lambda: run(IMPORTS),
                "packimport CONTAINER": lambda: run(
                    [*PACKIMPORT, str(options.pack), *config], (0, 1)
                ),
                "onnx.load": lambda: run([*LOAD, graph]),
                "cp -r": fresh(copy, ["cp", "-r", str(options.pack), str(copy)]),
                "openssl dgst -sha256": lambda: run(["openssl", "dgst", "-sha256", *files]),
                "packimport patch -o": fresh(
                    out,
                    [*PACKIMPORT, "patch", str(options.pack), "-o", str(out), *config, "--quiet"],
                ),
            },
            options.rounds,
        )
    for name, (seconds, peak) in seen.items():
        print(f"{name:24}{seconds:8.3f} s{peak:9.1f} MB")
    imports = seen["import onnx, numpy"][0]
    instead = imports + seen["cp -r"][0] + seen["openssl dgst -sha256"][0]
    check, peak = seen["packimport CONTAINER"]
    print(f"check / imports                 {check / imports:6.2f}   limit 3")
    print(f"check's peak                    {peak:6.0f} MB   limit 130")
    print(f"check / onnx.load               {check / seen['onnx.load'][0]:6.2f}")
    patch = seen["packimport patch -o"][0]
    print(f"patch / (cp + openssl + imports){patch / instead:6.2f}   limit 1.3")


if __name__ == "__main__":
    main()
