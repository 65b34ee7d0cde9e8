"""Nodes that lack an input, an output or their attributes: an error of ours, never a fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
from plain_graphs import angles_by_matmul, decoder, gathered, twice, waves, write_pack
from test_apart import RIGHT
from test_plain_ops import COS, SIN
from test_sections import MASKED, by_axes, by_gather, by_masks

from packimport import check
from packimport.errors import GraphError, PackimportError

GRAPHS: dict[str, dict[str, Any]] = {
    **{name: RIGHT[name] for name in ("apart", "apart, neighbours", "chunks", "picked twice")},
    "late, a cache": {**RIGHT["late"], "cache": True},
    "sections": {"trig": by_axes()},
    "columns": {"trig": by_masks(MASKED[1, 4, 2, 2]), "rotate": by_gather},
    "frequencies": {"trig": waves(angles_by_matmul(), 1.5)},
    "tables": {"trig": gathered(twice(COS), twice(SIN), sliced=True)},
}
Damage = Callable[[onnx.NodeProto], None]


def without(field: str, index: int) -> Damage:
    def damage(node: onnx.NodeProto) -> None:
        del getattr(node, field)[index]

    return damage


def damages(node: onnx.NodeProto) -> Iterator[Damage]:
    for field in ("input", "output", "attribute"):
        yield from (without(field, index) for index in range(len(getattr(node, field))))


@pytest.mark.parametrize("name", sorted(GRAPHS))
def test_no_damage_is_a_fault_of_ours(name: str, tmp_path: Path) -> None:
    right = decoder(**GRAPHS[name])
    pack = write_pack(tmp_path / "p", right)
    seen: Counter[str] = Counter()
    refused = 0
    for index, node in enumerate(right.graph.node):
        seen[node.op_type] += 1
        if seen[node.op_type] > 3:
            continue
        for damage in damages(node):
            model = onnx.ModelProto()
            model.CopyFrom(right)
            damage(model.graph.node[index])
            (pack / "model.onnx").write_bytes(model.SerializeToString())
            try:
                refused += check(pack).verdict == "unsupported"
            except PackimportError:
                refused += 1
    assert refused > 20


def test_an_op_with_another_number_of_inputs_is_named(tmp_path: Path) -> None:
    model = decoder(**GRAPHS["frequencies"])
    (node,) = [n for n in model.graph.node if n.name == "/q1"]
    del node.input[1]
    with pytest.raises(GraphError, match="a node of Add with another number of inputs") as caught:
        check(write_pack(tmp_path / "p", model))
    assert caught.value.place == "model.onnx: /q1"
    assert (caught.value.found, caught.value.allowed) == ("1", "2")
