"""Rows of cos and sin whose parts follow positions in three axes, in plain ops.

All axes have the same positions here, as text has, so that onnxruntime's logits are those of a
plain graph; tests/oracle has models whose axes differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto
from plain_graphs import PAIRS, PLAIN, Graph, Trig, decoder, doubled, gathered, twice, write_pack
from test_plain_ops import COS, SIN, codes, logits

from packimport import check

SECTIONS = (2, 3, 3)


def by_axes(
    axes: Sequence[int] = (0, 1, 2),
    *,
    order: Sequence[int] = (0, 1, 2),
    late: bool = True,
    axis: int = -1,
) -> Trig:
    """Parts of cos and sin, each of an axis; late: doubled behind that, else before."""

    def make(g: Graph) -> tuple[str, str]:
        three = g.node(
            "Expand", g.node("Unsqueeze", "position_ids", g.integers(0)), g.integers(3, 1, 1)
        )
        floats = g.node("Cast", g.node("Unsqueeze", three, g.integers(3)), to=TensorProto.FLOAT)
        angles = g.node("Mul", floats, g.constant(PLAIN, name="inv_freq"))
        if not late:
            angles = doubled(g, angles, False)
        times = 1 if late else 2
        made = []
        for op in ("Cos", "Sin"):
            sizes = g.integers(*(SECTIONS * times))
            names = [f"{op}{i}" for i in range(3 * times)]
            g.node("Split", g.node(op, angles), sizes, name=names[0], axis=axis)
            g.nodes[-1].output.extend(names[1:])
            parts = [
                g.node("Gather", names[3 * turn + part], g.scalar(axes[part]), axis=0)
                for turn in range(times)
                for part in order
            ]
            whole = g.node("Concat", *parts, axis=-1)
            made.append(doubled(g, whole, False) if late else whole)
        return made[0], made[1]

    return make


def by_masks(
    owners: Sequence[int], axes: Sequence[int] = (0, 1, 2), *, other: bool = False
) -> Trig:
    """Rows of stored tables by three axes, of which masks choose by column."""

    def make(g: Graph) -> tuple[str, str]:
        three = g.node(
            "Expand", g.node("Unsqueeze", "position_ids", g.integers(0)), g.integers(3, 1, 1)
        )
        picked = [g.node("Gather", three, g.scalar(axis), axis=0) for axis in axes]
        made = []
        for values, name in ((COS, "cos_table"), (SIN, "sin_table")):
            tables = [g.constant(values, name=name)] * 3
            if other:
                tables[2] = g.constant(values + 1, name="other")
            rows = [g.node("Gather", t, ids, axis=0) for t, ids in zip(tables, picked, strict=True)]
            chosen = rows[0]
            for axis in (1, 2):
                mask = g.constant(np.array(owners) == axis, np.bool_)
                chosen = g.node("Where", mask, rows[axis], chosen)
            made.append(chosen)
        return made[0], made[1]

    return make


def by_gather(g: Graph, x: str, trig: list[str], repeated: bool, name: str) -> str:
    """Halves, or neighbours, that a Gather picks; rotated apart."""
    assert not repeated
    cos, sin = trig
    x1, x2 = (
        g.node("Gather", x, g.integers(*range(start, start + PAIRS)), axis=-1)
        for start in (0, PAIRS)
    )
    one = g.node("Sub", g.node("Mul", x1, cos), g.node("Mul", x2, sin))
    other = g.node("Add", g.node("Mul", x2, cos), g.node("Mul", x1, sin))
    return g.node("Concat", one, other, axis=-1, name=name)


MASKED = {
    (0, 2, 3, 3): (0, 0, 1, 1, 1, 2, 2, 2),
    (1, 4, 2, 2): (0, 1, 2, 0, 1, 2, 0, 0),
}


@pytest.mark.parametrize("mrope", sorted(MASKED))
def test_columns_of_three_axes(mrope: tuple[int, ...], tmp_path: Path) -> None:
    pack = write_pack(tmp_path / "p", decoder(by_masks(MASKED[mrope]), rotate=by_gather))
    plain = write_pack(tmp_path / "plain", decoder(gathered(twice(COS), twice(SIN))))
    assert np.abs(logits(pack) - logits(plain)).max() < 1e-4
    report = check(pack)
    assert (report.verdict, codes(report)) == ("ok", [])
    assert [judged.site.mrope for judged in report.sites] == [mrope]


@pytest.mark.parametrize(
    "trig",
    [
        by_masks((0, 1, 0, 1, 0, 2, 0, 2)),  # of no layout
        by_masks(MASKED[0, 2, 3, 3], (1, 0, 2)),
        by_masks(MASKED[0, 2, 3, 3], other=True),
    ],
)
def test_other_columns_are_refused(trig: Trig, tmp_path: Path) -> None:
    report = check(write_pack(tmp_path / "p", decoder(trig, rotate=by_gather)))
    assert (report.verdict, report.sites) == ("unsupported", ())
    assert {"RPE003"} <= set(codes(report))


@pytest.mark.parametrize("trig", [by_axes(), by_axes(late=False), by_axes(axis=3)])
def test_right(trig: Trig, tmp_path: Path) -> None:
    pack = write_pack(tmp_path / "p", decoder(trig))
    plain = write_pack(tmp_path / "plain", decoder(gathered(twice(COS), twice(SIN))))
    assert np.abs(logits(pack) - logits(plain)).max() < 1e-4
    report = check(pack)
    assert (report.verdict, codes(report)) == ("ok", [])
    assert [judged.site.mrope for judged in report.sites] == [(0, *SECTIONS)]
    assert all(judged.site.pairs == PAIRS for judged in report.sites)


@pytest.mark.parametrize(
    "trig",
    [
        by_axes((0, 2, 1)),  # height and width change places
        by_axes((0, 1, 1)),
        by_axes(order=(1, 0, 2)),  # the parts of a row do
        by_axes(order=(2, 1, 0), late=False),
    ],
)
def test_other_parts_are_refused(trig: Trig, tmp_path: Path) -> None:
    report = check(write_pack(tmp_path / "p", decoder(trig)))
    assert (report.verdict, report.sites) == ("unsupported", ())
    assert {"RPE003"} == set(codes(report))
