"""Check and patch of a Ryzen AI token-fusion pack, beside a bare script. One run, ratios.

    PYTHONPATH=tests python benchmarks/ryzen_ai.py [--rounds 7] [--folder DIR]

Llama-3.2-1B's shape: 16 layers, tables of 131072 rows x 32 pairs, float16 in the data file for
prefill and bfloat16 inside fusion.onnx for decoding, both wrong. Weights of 525 MB are holes of
a sparse file. The bare script imports onnx, reads the graph and both tables, computes the
declared ones in numpy's float32 and writes them where they were; it checks and keeps nothing,
and does not wait for the disk. Not on Windows.
"""

from __future__ import annotations

import argparse
import os
import shutil
from multiprocessing import get_context
from pathlib import Path

from measuring import (
    PACKIMPORT,
    Figures,
    load,
    python,
    ratio,
    rounds_of,
    run,
    scratch,
    show,
)

BARE = """
import math, sys
import ml_dtypes, numpy, onnx
folder = sys.argv[1]
with open(folder + "/fusion.onnx", "rb") as file:
    model = onnx.ModelProto.FromString(file.read())
(switch,) = (node for node in model.graph.node if node.op_type == "If")
branches = {a.name: a.g for a in switch.attribute}
(token,) = (
    node.attribute[0].t for node in branches["then_branch"].node
    if node.output[0] == "sin_cos_cache_token"
)
numpy.frombuffer(token.raw_data, ml_dtypes.bfloat16)
plain = 1 / 500000 ** (numpy.arange(32) / 32)
turns = 8192 * plain / (2 * math.pi)
share = numpy.clip((turns - 1) / 3, 0, 1)
frequencies = ((1 - share) * plain / 32 + share * plain).astype(numpy.float32)
angles = numpy.multiply.outer(numpy.arange(131072, dtype=numpy.float32), frequencies)
made = {"cos_cache": numpy.cos(angles), "sin_cache": numpy.sin(angles)}
with open(folder + "/fusion.onnx.data", "r+b") as file:
    for tensor in branches["else_branch"].initializer:
        if tensor.name in made:
            place = {entry.key: entry.value for entry in tensor.external_data}
            file.seek(int(place["offset"]))
            numpy.frombuffer(file.read(int(place["length"])), numpy.float16)
            file.seek(int(place["offset"]))
            file.write(made[tensor.name].astype(numpy.float16).tobytes())
both = numpy.concatenate([made["cos_cache"], made["sin_cache"]], axis=1)
token.raw_data = both.astype(ml_dtypes.bfloat16).tobytes()
with open(folder + "/fusion.onnx", "wb") as file:
    file.write(model.SerializeToString())
"""


def make(folder: str) -> None:
    """The pack, whose original_max_position_embeddings is max_position_embeddings, as AMD's
    exporter bakes it, and its source config beside it.

    In a process of its own: a child counts the memory that its parent had when it was started.
    """
    from ryzen_graphs import Shape
    from ryzen_packs import build
    from ryzen_tables import Declared, llama3, tables

    rows, pairs, theta, factor, original = 131072, 32, 500000.0, 32.0, 8192
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "max_position_embeddings": rows,
        "rope_theta": theta,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": original,
        },
    }
    declared = Declared(config, llama3(pairs, theta, factor, original))
    build(
        "npu 1.6", Path(folder), declared,
        tables=tables(llama3(pairs, theta, factor, rows), rows),
        shape=Shape(layers=16, heads=32, kv_heads=8, head_size=64, hidden=2048, vocab=128256),
        sparse=True,
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="where to write; the system's default else")
    options = parser.parse_args()
    with scratch(options.folder) as here:
        pack = here / "pack"
        maker = get_context("spawn").Process(target=make, args=(str(pack),))
        maker.start()
        maker.join()
        assert maker.exitcode == 0
        config = ["--config", str(here / "pack-source")]
        size = sum(path.stat().st_size for path in pack.rglob("*") if path.is_file())
        print(f"{size / 1e6:.0f} MB; {load()}")
        fresh, out = here / "fresh", here / "out"

        def after(command: list[str], *, copy: bool = True) -> Figures:
            """Run a command on a new copy, and without an output of an earlier round."""
            shutil.rmtree(out, ignore_errors=True)
            if copy:
                shutil.rmtree(fresh, ignore_errors=True)
                run(["cp", "-r", "--sparse=always", str(pack), str(fresh)])
            os.sync()
            return run(command)

        patch = [*PACKIMPORT, "patch", "--quiet", *config]
        seen = rounds_of(
            {
                "bare script": lambda: after(python(BARE, fresh)),
                "check": lambda: run([*PACKIMPORT, str(pack), *config], (1,)),
                "patch --in-place": lambda: after([*patch, "--in-place", str(fresh)]),
                "patch -o": lambda: after([*patch, str(pack), "-o", str(out)], copy=False),
            },
            options.rounds,
        )
        # Both wrote the declared tables: ours are ok, and so are the script's.
        after([*patch, str(pack), "-o", str(out)], copy=False)
        run([*PACKIMPORT, str(out)])
        after(python(BARE, fresh))
        run([*PACKIMPORT, str(fresh), *config])
    show(seen)
    bare = seen["bare script"].seconds
    ratio("check / bare script", seen["check"].seconds / bare, "-")
    ratio("patch --in-place / bare script", seen["patch --in-place"].seconds / bare, "2.5")
    both = seen["check"].seconds + seen["patch --in-place"].seconds
    ratio("(check + patch --in-place) / bare script", both / bare, "-")
    # This one copies and hashes the weights as well.
    ratio("patch -o / bare script", seen["patch -o"].seconds / bare, "-")
    print(load())


if __name__ == "__main__":
    main()
