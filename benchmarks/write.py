"""Writing and verifying a container, beside `cp -r` and `openssl`. One run, ratios.

    python benchmarks/write.py [--megabytes 500] [--files 3] [--rounds 5] [--folder DIR]

Makes a folder of random bytes, most of them in one file, and edits two spans of
that file. Every figure is of a whole process: wall time (median of alternating
rounds) and peak memory. Disk caches are warm; what a step wrote is on the disk
before the next one starts. Needs `cp`, `openssl` and os.wait4 (not on Windows).
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

WRITE = """
import hashlib, sys
from packimport.pack.container import open_container
from packimport.pack.edits import Edit
from packimport.pack.manifest import Manifest, edit_records
from packimport.pack.writer import write_container

container, new = open_container(sys.argv[1]), bytes(8 << 20)
file = max(container.files, key=container.size)
edits = [
    Edit(file=file, offset=offset, new=new, reason="a table",
         old_sha256=hashlib.sha256(container.span(file, offset, len(new))).hexdigest())
    for offset in (container.size(file) // 2, container.size(file) - len(new))
]
write_container(container, sys.argv[2], edits, {}, lambda files: Manifest(
    tool_version="0", container_format="folder", source={"path": "p", "format": "folder"},
    files=files, edits=edit_records(edits), semantics=None, declaration=None))
"""
VERIFY = """
import sys
from packimport.pack.container import open_container
from packimport.pack.manifest import read_manifest
from packimport.pack.verification import verify

container = open_container(sys.argv[1])
assert verify(container, read_manifest(container)).ok
"""

Figures = tuple[float, float]


def run(command: list[str]) -> Figures:
    """Seconds and peak MB of one process."""
    os.sync()
    start = time.perf_counter()
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - start
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"exit {child.returncode}: {' '.join(command)}")
    return seconds, usage.ru_maxrss / 1024


def make(folder: Path, megabytes: int, files: int) -> Path:
    """A folder of `files` files: one of nearly all bytes, the others of 20 kB."""
    folder.mkdir()
    (folder / "genai_config.json").write_text("{}", encoding="utf-8")
    with (folder / "model.onnx.data").open("wb") as file:
        for _ in range(megabytes):
            file.write(os.urandom(1 << 20))
    for index in range(files - 2):
        (folder / f"part{index}.bin").write_bytes(os.urandom(20_000))
    return folder


def measured(pack: Path, scratch: Path, rounds: int) -> dict[str, Figures]:
    """Median seconds and largest peak of each step, in alternating rounds after a warm-up."""
    copy, out = scratch / "copy", scratch / "out"
    files = sorted(str(path) for path in pack.iterdir())

    def python(script: str, *arguments: Path) -> Callable[[], Figures]:
        return lambda: run([sys.executable, "-c", script, *map(str, arguments)])

    steps: dict[str, Callable[[], Figures]] = {
        "import onnx, numpy": python("import onnx, numpy"),
        "cp -r": lambda: run(["cp", "-r", str(pack), str(copy)]),
        "openssl dgst -sha256": lambda: run(["openssl", "dgst", "-sha256", *files]),
        "write": python(WRITE, pack, out),
        "verify": python(VERIFY, out),
    }
    seen: dict[str, list[Figures]] = {name: [] for name in steps}
    for index in range(rounds + 1):
        for folder in (copy, out):
            shutil.rmtree(folder, ignore_errors=True)
        for name, step in steps.items():
            figures = step()
            if index:
                seen[name].append(figures)
    return {
        name: (statistics.median(s for s, _ in results), max(m for _, m in results))
        for name, results in seen.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=500)
    parser.add_argument("--files", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where to write; the system's default else")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.folder) as scratch:
        pack = make(Path(scratch, "pack"), options.megabytes, options.files)
        seen = measured(pack, Path(scratch), options.rounds)
    for name, (seconds, peak) in seen.items():
        print(f"{name:24}{seconds:8.3f} s{peak:9.1f} MB")
    imports, copy, digest = (seen[name][0] for name in list(seen)[:3])
    print(f"write / (cp + openssl)          {seen['write'][0] / (copy + digest):6.2f}")
    print(f"write / (cp + openssl + imports){seen['write'][0] / (copy + digest + imports):6.2f}")
    print(f"openssl / verify                {digest / seen['verify'][0]:6.2f}   limit 0.8 or more")


if __name__ == "__main__":
    main()
