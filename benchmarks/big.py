"""Check and patch in place of an 8B-shaped int4 pack, beside onnx. One run, ratios.

    python benchmarks/big.py [--rounds 5] [--folder DIR] [--no-load]

32 layers, 6 GB of external data (sparse), float16 tables of 131072 rows x 64 pairs that
are wrong, and every entry of which is compared. `onnx.load` needs 6 GB of memory and
`onnx.save` as much of the disk: both run once. Not on Windows.
"""

from __future__ import annotations

import argparse
import shutil
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

BARE = """
import sys
import numpy, onnx
folder = sys.argv[1]
with open(folder + "/model.onnx", "rb") as file:
    onnx.ModelProto.FromString(file.read())
with open(folder + "/model.onnx.data", "rb") as file:
    for offset in sys.argv[2:]:
        file.seek(int(offset))
        file.read(131072 * 64 * 2)
positions = numpy.arange(131072, dtype=numpy.float32)
frequencies = 1 / 500000 ** (numpy.arange(64, dtype=numpy.float32) / numpy.float32(64))
angles = numpy.multiply.outer(positions, frequencies.astype(numpy.float32))
numpy.cos(angles), numpy.sin(angles)
"""
LOAD = "import sys, onnx; onnx.load(sys.argv[1] + '/model.onnx')"
LOAD_AND_SAVE = """
import sys, onnx
model = onnx.load(sys.argv[1] + "/model.onnx")
onnx.save(model, sys.argv[2], save_as_external_data=True, location="saved.data")
"""


def copied(pack: Path, target: Path) -> None:
    """A copy that is as sparse."""
    shutil.rmtree(target, ignore_errors=True)
    run(["cp", "-r", "--sparse=always", str(pack), str(target)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, help="where to write; the system's default else")
    parser.add_argument("--no-load", action="store_true", help="leave onnx.load and save out")
    options = parser.parse_args()
    with scratch(options.folder) as here:
        pack, patched, right = (here / name for name in ("pack", "patched", "right"))
        size, *tables = make_pack(pack, "8b", "sparse")
        print(f"{size / 1e9:.1f} GB of external data; {load()}")
        copied(pack, right)
        run([*PACKIMPORT, "patch", "--in-place", str(right)])

        def in_place() -> Figures:
            copied(pack, patched)
            run(["sync"])
            return run([*PACKIMPORT, "patch", "--in-place", str(patched)])

        seen = rounds_of(
            {
                "bare script": lambda: run(python(BARE, pack, *tables)),
                "check, wrong tables": lambda: run([*PACKIMPORT, str(pack)], (1,)),
                "check, right tables": lambda: run([*PACKIMPORT, str(right)]),
                "patch --in-place": in_place,
            },
            options.rounds,
        )
        seen["undo"] = run([*PACKIMPORT, "undo", str(patched)])
        if not options.no_load:
            seen["onnx.load"] = run(python(LOAD, pack))
            seen["onnx.load + onnx.save"] = run(python(LOAD_AND_SAVE, pack, here / "saved.onnx"))
    show(seen)
    bare = seen["bare script"].seconds
    for name in ("check, wrong tables", "check, right tables"):
        ratio(f"{name} / bare script", seen[name].seconds / bare, "2.5")
    if options.no_load:
        return
    loaded, saved = seen["onnx.load"], seen["onnx.load + onnx.save"]
    for name in ("check, wrong tables", "check, right tables"):
        ratio(f"{name} / onnx.load, time", seen[name].seconds / loaded.seconds, "0.3")
        ratio(f"{name} / onnx.load, memory", seen[name].peak_mb / loaded.peak_mb, "0.05")
    ratio("patch in place / load + save", seen["patch --in-place"].seconds / saved.seconds, "0.2")
    print(load())


if __name__ == "__main__":
    main()
