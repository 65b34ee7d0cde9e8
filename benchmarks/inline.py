"""Check of a pack with 1.9 GB of weights inside its .onnx, beside parsing it. One run, ratios.

    python benchmarks/inline.py [--rounds 3] [--folder DIR]

The weights are holes of a sparse file. Parsing takes 4 GB of memory. Not on Windows.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from measuring import PACKIMPORT, load, make_pack, python, ratio, rounds_of, run, scratch, show

PARSE = """
import sys, onnx
with open(sys.argv[1] + "/model.onnx", "rb") as file:
    onnx.ModelProto.FromString(file.read())
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, help="where to write; the system's default else")
    options = parser.parse_args()
    with scratch(options.folder) as here:
        pack = here / "pack"
        size, *_ = make_pack(pack, "inline", "inline")
        print(f"{size / 1e9:.2f} GB inside model.onnx; {load()}")
        seen = rounds_of(
            {
                "parse": lambda: run(python(PARSE, pack)),
                "check": lambda: run([*PACKIMPORT, str(pack)], (1,)),
            },
            options.rounds,
        )
    show(seen)
    ratio("check / parse, time", seen["check"].seconds / seen["parse"].seconds, "1.5")
    ratio("check / parse, memory", seen["check"].peak_mb / seen["parse"].peak_mb, "1.5")
    print(load())


if __name__ == "__main__":
    main()
