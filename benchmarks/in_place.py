"""Patch and verify of a 500 MB pack that is not sparse, beside cp and openssl. One run, ratios.

    python benchmarks/in_place.py [--rounds 5] [--folder DIR]

Every figure is of a whole process. Disk caches are warm, and what a step wrote is on the
disk before the next one starts. Needs `cp`, `openssl` and `xargs` (not on Windows).
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from measuring import (
    PACKIMPORT,
    Figures,
    load,
    make_pack,
    python,
    ratio,
    rounds_of,
    run,
    scratch,
    show,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where to write; the system's default else")
    options = parser.parse_args()
    with scratch(options.folder) as here:
        pack = here / "pack"
        size, *_ = make_pack(pack, "small", "filled")
        print(f"{size / 1e6:.0f} MB of external data; {load()}")
        copy, out, patched = (here / name for name in ("copy", "out", "patched"))
        run([*PACKIMPORT, "patch", str(pack), "-o", str(out)])
        files = [str(path) for path in out.iterdir()]

        def fresh(
            target: Path, command: list[str], *, copied: bool = False
        ) -> Callable[[], Figures]:
            def step() -> Figures:
                shutil.rmtree(target, ignore_errors=True)
                if copied:
                    shutil.copytree(pack, target)
                os.sync()
                return run(command)

            return step

        again = here / "again"
        seen = rounds_of(
            {
                "import onnx, numpy": lambda: run(python("import onnx, numpy")),
                "cp -r": fresh(copy, ["cp", "-r", str(pack), str(copy)]),
                # As many processes as there are cores, a file each.
                "openssl dgst -sha256": lambda: run(
                    [
                        *("xargs", "-P", str(os.cpu_count()), "-n", "1"),
                        *("-a", str(_listed(files, here)), "openssl", "dgst", "-sha256"),
                    ]
                ),
                "patch -o": fresh(again, [*PACKIMPORT, "patch", str(pack), "-o", str(again)]),
                "patch --in-place": fresh(
                    patched, [*PACKIMPORT, "patch", "--in-place", str(patched)], copied=True
                ),
                "verify": lambda: run([*PACKIMPORT, "verify", str(out)]),
                "bare verify": lambda: run(python(BARE_VERIFY, out)),
            },
            options.rounds,
        )
    show(seen)
    imports, copying, hashing = (
        seen[name].seconds for name in ("import onnx, numpy", "cp -r", "openssl dgst -sha256")
    )
    instead = imports + copying + hashing
    ratio("patch -o / (cp + openssl + imports)", seen["patch -o"].seconds / instead, "1.3")
    ratio("openssl / verify", hashing / seen["verify"].seconds, "0.8 or more")
    print(load())


def _listed(files: list[str], here: Path) -> Path:
    path = here / "files"
    path.write_text("\n".join(files), encoding="utf-8")
    return path


BARE_VERIFY = """
import sys
from packimport.pack.container import open_container
from packimport.pack.verification import verify_container
assert verify_container(open_container(sys.argv[1])).ok
"""

if __name__ == "__main__":
    main()
