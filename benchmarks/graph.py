"""Check of a graph of 100 000 nodes, beside a bare script that parses it and maps its values.

    PYTHONPATH=tests:tests/graph python benchmarks/graph.py [--nodes 100000] [--rounds 7] [--all]

Decoders of 64 and of 1000 GroupQueryAttention layers, and one of 64 layers in plain ops
that computes cos and sin from frequencies; the rest of the nodes stands behind the logits.
With --all also graphs that are layers and nothing else, thousands of them. Weights are a
few bytes each. The bare script parses the file with onnx and fills the maps of producers
and consumers. Both run in one process, imports done, in alternating rounds; medians of
processor time, and their ratio.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from builders import tiny_pack
from onnx import helper, numpy_helper
from plain_graphs import angles_by_matmul, decoder, waves, write_pack

from packimport import check

FILLER = ("Add", "Mul", "Sigmoid", "Cast", "Sub")


def filled(model: onnx.ModelProto, nodes: int) -> None:
    """Nodes behind the logits, until there are as many as asked for."""
    one = numpy_helper.from_array(np.array(1, np.float32), "one_float")
    model.graph.initializer.append(one)
    value = "logits"
    for index in range(nodes - len(model.graph.node)):
        op = FILLER[index % len(FILLER)]
        inputs = [value] if op in {"Sigmoid", "Cast"} else [value, "one_float"]
        attributes = {"to": 1} if op == "Cast" else {}
        name = f"/model/block.{index // 40}/mlp/act/{op}_{index}"
        model.graph.node.append(
            helper.make_node(op, inputs, [f"{name}_output_0"], name, **attributes)
        )
        value = f"{name}_output_0"


def bare(path: Path) -> None:
    """Parse, and map every value to the node that makes it and to those that take it."""
    model = onnx.load(str(path), load_external_data=False)
    producers: dict[str, int] = {}
    consumers: dict[str, list[int]] = {}
    for index, node in enumerate(model.graph.node):
        for name in node.output:
            producers[name] = index
        for name in node.input:
            consumers.setdefault(name, []).append(index)


def seconds(step: Callable[[], object]) -> float:
    start = time.process_time()
    step()
    return time.process_time() - start


def measure(name: str, pack: Path, rounds: int) -> None:
    path = pack / "model.onnx"
    report = check(pack)
    assert report.verdict == "ok", report.text()
    times: dict[str, list[float]] = {"bare": [], "check": []}
    for _ in range(rounds):
        times["bare"].append(seconds(lambda: bare(path)))
        times["check"].append(seconds(lambda: check(pack)))
    plain, checked = (statistics.median(found) for found in times.values())
    nodes = len(onnx.load(str(path), load_external_data=False).graph.node)
    print(
        f"{name:<12}{nodes} nodes, {path.stat().st_size / 2**20:.1f} MB:"
        f" bare {plain:.3f} s, check {checked:.3f} s, {checked / plain:.2f}x"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--all", action="store_true", help="graphs of layers alone, too")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        fused = {"64 fused": 64, "1000 fused": 1000}
        plain = {"64 plain": 64}
        if options.all:
            fused["all fused"] = options.nodes // 20
            plain["all plain"] = options.nodes // 31
        for name, layers in fused.items():
            folder = tiny_pack(
                Path(scratch, name), layers=layers, config={},
                change=lambda model: filled(model, options.nodes),
            )  # fmt: skip
            measure(name, folder, options.rounds)
        for name, layers in plain.items():
            model = decoder(waves(angles_by_matmul()), layers=layers, cache=layers == 64)
            filled(model, options.nodes)
            measure(name, write_pack(Path(scratch, name), model), options.rounds)


if __name__ == "__main__":
    main()
