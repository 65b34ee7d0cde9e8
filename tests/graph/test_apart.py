"""Halves or neighbours that are rotated apart, and cos and sin that are doubled late.

The truth of a graph is what onnxruntime 1.32 makes of it: its logits equal those of the same
weights with stored tables of the declared schedule, or they don't.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import rename_everything
from onnx import TensorProto, helper
from plain_graphs import (
    HEAD,
    PAIRS,
    PLAIN,
    Graph,
    angles_by_mul,
    decoder,
    floats,
    gathered,
    twice,
    waves,
    write_pack,
)
from test_plain_ops import COS, OTHER, SIN, codes, logits

from packimport import check, patch

Rotate = Callable[..., str]


def apart(*, first: str = "Sub", second: str = "Add", swapped: bool = False) -> Rotate:
    """x1 * cos - x2 * sin and x2 * cos + x1 * sin, put together again."""

    def rotate(g: Graph, x: str, trig: list[str], repeated: bool, name: str) -> str:
        cos, sin = trig
        axis, end = g.integers(3), g.integers(2**62)
        if repeated:
            x1, x2 = (g.node("Slice", x, g.integers(i), end, axis, g.integers(2)) for i in (0, 1))
        else:
            x1 = g.node("Slice", x, g.integers(0), g.integers(PAIRS), axis)
            x2 = g.node("Slice", x, g.integers(PAIRS), end, axis)
        one = g.node(first, g.node("Mul", x1, cos), g.node("Mul", x2, sin))
        other = g.node(second, g.node("Mul", x2, cos), g.node("Mul", x1, sin))
        parts = [other, one] if swapped else [one, other]
        if not repeated:
            return g.node("Concat", *parts, axis=-1, name=name)
        stack = [g.node("Unsqueeze", part, g.integers(-1)) for part in parts]
        flat = g.node("Concat", *stack, axis=-1)
        return g.node("Reshape", flat, g.integers(0, 0, 0, HEAD), name=name)

    return rotate


def chunked(g: Graph, x: str, trig: list[str], repeated: bool, name: str) -> str:
    """The halves as torch's older exporter writes chunk: bounds by arithmetic on the shape."""
    cos, sin = trig
    count = g.node("Gather", g.node("Shape", x), g.integers(3))
    half = g.node("Div", g.node("Add", count, g.integers(1)), g.integers(2))
    one, whole = (g.node("Mul", half, g.integers(times)) for times in (1, 2))
    axis = g.integers(-1)
    x1 = g.node("Slice", x, g.integers(0), one, axis)
    x2 = g.node("Slice", x, one, whole, axis)
    low = g.node("Sub", g.node("Mul", x1, cos), g.node("Mul", x2, sin))
    high = g.node("Add", g.node("Mul", x2, cos), g.node("Mul", x1, sin))
    return g.node("Concat", low, high, axis=-1, name=name)


def single(frequencies: Any = PLAIN) -> Callable[[Graph], str]:
    def make(g: Graph) -> str:
        return g.node("Mul", floats(g), g.constant(frequencies, name="inv_freq"))

    return make


def late(frequencies: Any = PLAIN, *, stop: int = PAIRS, axis: int = 3) -> Any:
    """The first half of cos and of sin, each value twice, as GLM and Ernie have it."""

    def make(g: Graph) -> tuple[str, str]:
        made = []
        for part in waves(angles_by_mul(frequencies))(g):
            half = g.node("Slice", part, g.integers(0), g.integers(stop), g.integers(2))
            new = g.node("Unsqueeze", half, g.integers(axis))
            wide = g.node("Expand", new, g.integers(1, 1, 1, 2))
            made.append(g.node("Reshape", wide, g.integers(0, 0, HEAD)))
        return made[0], made[1]

    return make


def picked_twice(times: int = 2, *, column: int = 1) -> Callable[[Graph], str]:
    """repeat_interleave as torch's older exporter writes it, with a GatherND."""

    def make(g: Graph) -> str:
        angles = single()(g)
        rows = g.node("Transpose", angles, perm=[2, 1, 0])
        like = g.node("Shape", g.node("Transpose", angles, perm=[0, 2, 1]))
        count = g.node("Gather", like, g.integers(1))
        value = helper.make_tensor("", TensorProto.INT64, [1], [times])
        turns = g.node("ConstantOfShape", count, value=value)
        most = g.node("ReduceMax", turns, keepdims=0)
        shape = g.node(
            "Concat", g.integers(1), g.node("Unsqueeze", most, g.integers(0)), g.integers(1, 1),
            axis=0,
        )  # fmt: skip
        spread = g.node("Expand", g.node("Unsqueeze", rows, g.integers(1)), shape)
        counted = g.node("Range", g.scalar(0), most, g.scalar(1))
        below = g.node("Less", counted, g.node("Unsqueeze", turns, g.integers(column)))
        places = g.node("Transpose", g.node("NonZero", below), perm=[1, 0])
        return g.node("Transpose", g.node("GatherND", spread, places), perm=[2, 1, 0])

    return make


RIGHT: dict[str, dict[str, Any]] = {
    "apart": {"trig": waves(single()), "rotate": apart()},
    "apart, a stored table": {"trig": gathered(COS, SIN), "rotate": apart()},
    "apart, a cache": {"trig": waves(single()), "rotate": apart(), "cache": True},
    "apart, neighbours": {"trig": waves(single()), "rotate": apart(), "repeated": True},
    "chunks": {"trig": waves(single()), "rotate": chunked},
    "late": {"trig": late(), "repeated": True},
    "picked twice": {"trig": waves(picked_twice()), "repeated": True},
}
WRONG: dict[str, dict[str, Any]] = {
    "apart": {"trig": waves(single(OTHER)), "rotate": apart()},
    "apart, a stored table": {"trig": gathered(COS[::-1], SIN[::-1]), "rotate": apart()},
    "late": {"trig": late(OTHER), "repeated": True},
}
REFUSED: dict[str, dict[str, Any]] = {
    "backwards": {"trig": waves(single()), "rotate": apart(first="Add", second="Sub")},
    "mirrored": {"trig": waves(single()), "rotate": apart(second="Sub")},
    "put together the other way": {"trig": waves(single()), "rotate": apart(swapped=True)},
    "neighbours, the other way": {
        "trig": waves(single()), "rotate": apart(swapped=True), "repeated": True,
    },
    "another axis": {"trig": late(axis=2), "repeated": True},
    "another part": {"trig": late(stop=PAIRS - 1), "repeated": True},
    "picked three times": {"trig": waves(picked_twice(3)), "repeated": True},
    "picked by another column": {"trig": waves(picked_twice(column=0)), "repeated": True},
}  # fmt: skip


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, np.ndarray]:
    """Logits with stored tables of theta 10000, by how the entries are paired."""
    made = {}
    for repeated in (False, True):
        tables = gathered(twice(COS, repeated), twice(SIN, repeated))
        pack = tmp_path_factory.mktemp("reference") / "p"
        made[repeated] = logits(write_pack(pack, decoder(tables, repeated=repeated)))
    return made


@pytest.mark.parametrize("name", sorted(RIGHT))
def test_right(name: str, tmp_path: Path, reference: dict[bool, np.ndarray]) -> None:
    repeated = RIGHT[name].get("repeated", False)
    pack = write_pack(tmp_path / "p", decoder(**RIGHT[name]))
    assert np.abs(logits(pack) - reference[repeated]).max() < 1e-4
    report = check(pack)
    # A Llama pairs halves.
    assert codes(report) == (["RPE007"] * len(report.sites) if repeated else [])
    assert {layer for judged in report.sites for layer in judged.site.layers} == {0, 1}
    assert all(judged.measurement.wrong_pairs == 0 for judged in report.sites)
    rename_everything(pack)
    assert check(pack).verdict == report.verdict


@pytest.mark.parametrize("name", sorted(WRONG))
def test_wrong(name: str, tmp_path: Path, reference: dict[bool, np.ndarray]) -> None:
    repeated = WRONG[name].get("repeated", False)
    kind = {"model_type": "cohere"} if repeated else {}
    pack = write_pack(tmp_path / "p", decoder(**WRONG[name]), **kind)
    assert np.abs(logits(pack) - reference[repeated]).max() > 1e-3
    report = check(pack)
    assert set(codes(report)) == {"RPE001"}, report.text()
    patch(pack, tmp_path / "out")
    assert check(tmp_path / "out").verdict == "ok"
    assert np.abs(logits(tmp_path / "out") - reference[repeated]).max() < 1e-4


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_refused(name: str, tmp_path: Path) -> None:
    report = check(write_pack(tmp_path / "p", decoder(**REFUSED[name]), model_type="cohere"))
    assert report.verdict == "unsupported", report.text()
    assert {"RPE003"} <= set(codes(report))
    assert report.sites == ()
