"""Feed mutated inputs to every reader.

    python tests/fuzz/run.py --inputs 100000 [--target graph] [--seed 1]

Each target runs in a process of its own with at most 1 GB of memory beyond what its
modules take, and an alarm. A finding is an error that is none of ours, a warning, an
open of a file outside the target's folder, or an input beyond its time; its bytes are
written to --out, to become a test.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from types import FrameType
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent.parent)]
NAMES = ("strict_json", "config", "genai_config", "manifest", "unfinished", "wire", "graph",
         "archive", "dump", "kld", "tokens")  # fmt: skip
SECONDS = 5
MEMORY = 2**30


class Slow(BaseException):
    """An input takes too long. No reader catches it."""


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--target", choices=NAMES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()) / "fuzz-found")
    given = parser.parse_args()
    if given.target is not None:
        return fuzz(given.target, given.inputs, given.seed, given.out)
    codes = []
    for name in NAMES:
        command = [sys.executable, __file__, "--target", name, "--inputs", str(given.inputs)]
        command += ["--seed", str(given.seed), "--out", str(given.out)]
        codes.append(subprocess.run(command, check=False).returncode)
    return max(codes)


def fuzz(name: str, inputs: int, seed: int, out: Path) -> int:
    """Feed one target; prints a line of JSON, returns 1 where something was found."""
    import resource

    from mutations import mutated
    from targets import targets

    from packimport.errors import PackimportError

    warnings.simplefilter("error")
    rng = random.Random(f"{name} {seed}")
    found: dict[str, bytes] = {}
    counts = {"read": 0, "refused": 0}
    slowest = 0.0
    with tempfile.TemporaryDirectory() as place:
        target = targets(Path(place))[name]
        folder = Path(place) / name
        folder.mkdir(exist_ok=True)
        (folder / "genai_config.json").write_bytes(b"{}")
        tempfile.tempdir = place
        watch = Watch(os.path.realpath(place))
        sys.addaudithook(watch.see)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        resource.setrlimit(resource.RLIMIT_AS, (_address_space() + MEMORY, hard))
        signal.signal(signal.SIGALRM, _too_slow)
        began = time.monotonic()
        for number in range(inputs):
            # The seeds themselves come first: a target that refuses them tests nothing.
            good = number < len(target.seeds)
            seed_bytes = target.seeds[number % len(target.seeds)]
            data = seed_bytes if good else mutated(seed_bytes, target.seeds, rng)
            start = time.perf_counter()
            signal.setitimer(signal.ITIMER_REAL, SECONDS)
            try:
                watch.active = True
                target.read(folder, data)
                counts["read"] += 1
            except PackimportError as error:
                counts["refused"] += 1
                if good:
                    found.setdefault(f"a seed is refused: {error}", data)
            except (Exception, Slow) as error:
                found.setdefault(_place(error), data)
            finally:
                watch.active = False
                signal.setitimer(signal.ITIMER_REAL, 0)
            slowest = max(slowest, time.perf_counter() - start)
            if watch.crimes:
                found.setdefault(watch.crimes.pop(), data)
                watch.crimes.clear()
        seconds = time.monotonic() - began
        grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    for index, (what, data) in enumerate(found.items()):
        out.mkdir(parents=True, exist_ok=True)
        (out / f"{name}-{seed}-{index}.bin").write_bytes(data)
        (out / f"{name}-{seed}-{index}.txt").write_text(what, encoding="utf-8")
    line: dict[str, object] = {"target": name, "seed": seed, "inputs": inputs, **counts}
    line |= {"seconds": round(seconds, 1), "slowest": round(slowest, 3)}
    line |= {"grown_MB": grown // 1024, "found": list(found)}
    print(json.dumps(line), flush=True)
    return int(bool(found))


class Watch:
    """Sees files that are opened outside a folder, and Python's own."""

    def __init__(self, area: str) -> None:
        self.areas = (
            area,
            *map(os.path.realpath, (sys.prefix, sys.base_prefix, HERE.parent.parent)),
        )
        self.active = False
        self.crimes: list[str] = []

    def see(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.active or event != "open" or isinstance(args[0], int):
            return
        name = os.fsdecode(args[0])
        path = os.path.realpath(name)
        if not Path(name).is_absolute() and not Path(path).exists():
            return  # relative to an open folder: shutil removes what was unpacked
        if (
            not path.startswith(tuple(area + os.sep for area in self.areas))
            and path != self.areas[0]
        ):
            self.crimes.append(f"opened {name}")


def _too_slow(_number: int, _frame: FrameType | None) -> None:
    raise Slow(f"longer than {SECONDS} s")


def _place(error: BaseException) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    ours = [f for f in traceback.extract_tb(error.__traceback__) if "/fuzz/" not in f.filename]
    last = ours[-1] if ours else frame
    return f"{type(error).__name__} at {Path(last.filename).name}:{last.lineno}: {str(error)[:100]}"


def _address_space() -> int:
    """Bytes of address space in use."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    sys.exit(main())
