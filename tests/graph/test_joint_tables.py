"""Graphs of torch's exporters for GPT-J, GLM, Falcon and their kin: cos and sin in one table,
values doubled by way of rows, and heads that are taken from one projection.

The truth of a graph is what onnxruntime makes of it: its logits equal those of the same weights
with stored tables of the declared schedule (builders.plain), or they don't.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from builders import plain
from onnx import TensorProto
from plain_graphs import (
    HEAD,
    HEADS,
    PAIRS,
    PLAIN,
    Graph,
    Trig,
    angles_by_mul,
    decoder,
    gathered,
    rotated,
    twice,
    waves,
    write_pack,
)

from packimport import check, patch
from packimport.audit.report import Report

ROWS, TOKENS = 64, 12
COS, SIN = plain(ROWS, PAIRS)
OTHER = plain(ROWS, PAIRS, 500.0)
JOINT = np.hstack([SIN, COS])
# A family that pairs neighbours.
NEIGHBOURS = {"model_type": "helium", "rope_theta": 10000.0}


def codes(report: Report) -> set[str]:
    return {finding.code for finding in report.findings if finding.severity == "error"}


def logits(pack: Path) -> np.ndarray:
    session = ort.InferenceSession(str(pack / "model.onnx"), providers=["CPUExecutionProvider"])
    fed = {
        "input_ids": (np.arange(TOKENS) * 5 % 64)[None],
        "position_ids": np.arange(TOKENS)[None],
    }
    return np.asarray(session.run(["logits"], fed)[0])


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> np.ndarray:
    """Logits with stored tables of theta 10000, neighbours paired."""
    tables = gathered(twice(COS, True), twice(SIN, True))
    pack = tmp_path_factory.mktemp("reference") / "p"
    return logits(write_pack(pack, decoder(tables, repeated=True)))


# --- cos and sin in one table ------------------------------------------------------------------


def by_gather(g: Graph, table: str) -> str:
    return g.node("Gather", table, "position_ids", axis=0)


def by_gather_nd(g: Graph, table: str) -> str:
    """As torch's newer exporter."""
    return g.node("GatherND", table, g.node("Unsqueeze", "position_ids", g.integers(-1)))


def by_elements(width: int | None = None, by: str = "position_ids") -> Callable[[Graph, str], str]:
    """As torch's older exporter and optimum; width: of the places, where it is a constant."""

    def pick(g: Graph, table: str) -> str:
        batch = g.node("Slice", g.node("Shape", "position_ids"), g.integers(0), g.integers(1))
        wide = g.node("Expand", table, g.integers(1, 1, 1))
        counts = g.node("Concat", batch, g.integers(1), g.integers(1), axis=0)
        tables = g.node("Tile", wide, counts)
        last = g.integers(width or 0)
        if width is None:
            number = g.node("Gather", g.node("Shape", tables), g.scalar(2), axis=0)
            last = g.node("Unsqueeze", number, g.integers(0))
        counts = g.node("Concat", g.integers(1), g.integers(1), last, axis=0)
        places = g.node("Tile", g.node("Unsqueeze", by, g.integers(-1)), counts)
        return g.node("GatherElements", tables, places, axis=1)

    return pick


def by_split(g: Graph, row: str) -> tuple[str, str]:
    g.node("Split", row, g.integers(PAIRS, PAIRS), name="first", axis=2)
    g.nodes[-1].output.append("second")
    return "second", "first"


def by_slices(g: Graph, row: str) -> tuple[str, str]:
    first = g.node("Slice", row, g.integers(0), g.integers(PAIRS), g.integers(-1))
    return g.node("Slice", row, g.integers(PAIRS), g.integers(2**62), g.integers(2)), first


def tiled(g: Graph, x: str) -> str:
    stacked = g.node("Unsqueeze", x, g.integers(-1))
    return g.node(
        "Reshape", g.node("Tile", stacked, g.integers(1, 1, 1, 2)), g.integers(0, 0, HEAD)
    )


def expanded(g: Graph, x: str) -> str:
    stacked = g.node("Unsqueeze", x, g.integers(2, 4))
    wide = g.node("Expand", stacked, g.integers(1, 1, 1, 1, 2))
    return g.node("Reshape", wide, g.integers(0, 0, HEAD))


def joint(
    table: np.ndarray = JOINT,
    pick: Callable[[Graph, str], str] = by_gather_nd,
    cut: Callable[[Graph, str], tuple[str, str]] = by_split,
    double: Callable[[Graph, str], str] = tiled,
) -> Trig:
    def make(g: Graph) -> tuple[str, str]:
        cos, sin = cut(g, pick(g, g.constant(table, name="sincos")))
        return double(g, cos), double(g, sin)

    return make


def other_way_round(g: Graph, row: str) -> tuple[str, str]:
    second, first = by_split(g, row)
    return first, second


WAYS: dict[str, dict[str, Any]] = {
    "Gather": {"pick": by_gather},
    "GatherND": {"pick": by_gather_nd},
    "GatherElements": {"pick": by_elements()},
    "GatherElements, constant": {"pick": by_elements(HEAD)},
    "Slice": {"cut": by_slices},
    "Expand": {"double": expanded},
}


@pytest.mark.parametrize("name", sorted(WAYS))
def test_one_table_of_sin_and_cos(name: str, tmp_path: Path, reference: np.ndarray) -> None:
    pack = write_pack(tmp_path / "p", decoder(joint(**WAYS[name]), repeated=True), **NEIGHBOURS)
    assert np.abs(logits(pack) - reference).max() < 1e-5
    report = check(pack)
    assert (report.verdict, codes(report)) == ("ok", set()), report.text()
    assert {judged.site.encoding for judged in report.sites} == {"sin-cos"}
    assert {layer for judged in report.sites for layer in judged.site.layers} == {0, 1}
    wrong = joint(np.hstack(OTHER[::-1]), **WAYS[name])
    other = write_pack(tmp_path / "q", decoder(wrong, repeated=True), **NEIGHBOURS)
    assert np.abs(logits(other) - reference).max() > 1e-3
    assert codes(check(other)) == {"RPE001"}
    patch(other, tmp_path / "out")
    assert check(tmp_path / "out").verdict == "ok"
    assert np.abs(logits(tmp_path / "out") - reference).max() < 1e-5


def test_cos_before_sin(tmp_path: Path, reference: np.ndarray) -> None:
    trig = joint(np.hstack([COS, SIN]), cut=other_way_round)
    pack = write_pack(tmp_path / "p", decoder(trig, repeated=True), **NEIGHBOURS)
    assert np.abs(logits(pack) - reference).max() < 1e-5
    report = check(pack)
    assert report.verdict == "ok"
    assert {judged.site.encoding for judged in report.sites} == {"cos-sin"}


def test_cos_where_sin_is_taken(tmp_path: Path, reference: np.ndarray) -> None:
    """The table of a graph that takes its halves the other way round is wrong, and mended."""
    pack = write_pack(
        tmp_path / "p", decoder(joint(cut=other_way_round), repeated=True), **NEIGHBOURS
    )
    assert np.abs(logits(pack) - reference).max() > 1e-3
    assert codes(check(pack)) == {"RPE001"}
    patch(pack, tmp_path / "out")
    assert np.abs(logits(tmp_path / "out") - reference).max() < 1e-5


def in_halves(g: Graph, x: str) -> str:
    """Tile of the axis before the last: a row after itself, where neighbours are turned."""
    stacked = g.node("Unsqueeze", x, g.integers(-1))
    return g.node(
        "Reshape", g.node("Tile", stacked, g.integers(1, 1, 2, 1)), g.integers(0, 0, HEAD)
    )


def quarters(g: Graph, row: str) -> tuple[str, str]:
    half = PAIRS // 2
    first = g.node("Slice", row, g.integers(half), g.integers(PAIRS + half), g.integers(-1))
    return g.node("Slice", row, g.integers(PAIRS), g.integers(2**62), g.integers(2)), first


def by_tokens(g: Graph, table: str) -> str:
    """Rows that the tokens pick, not their positions."""
    return g.node("GatherND", table, g.node("Unsqueeze", "input_ids", g.integers(-1)))


def by_two(g: Graph, row: str) -> tuple[str, str]:
    """Of two tables each the second half."""
    other = g.node("Gather", g.constant(JOINT + 0, name="more"), "position_ids", axis=0)
    second = g.node("Slice", other, g.integers(PAIRS), g.integers(2**62), g.integers(2))
    return by_split(g, row)[0], second


REFUSED: dict[str, dict[str, Any]] = {
    "doubled otherwise": {"double": in_halves},
    "neither half": {"cut": quarters},
    "by token": {"pick": by_tokens},
    "elements by token": {"pick": by_elements(by="input_ids")},
    "second halves of two tables": {"cut": by_two},
}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_other_ways_are_refused(name: str, tmp_path: Path, reference: np.ndarray) -> None:
    model = decoder(joint(**REFUSED[name]), repeated=True)
    pack = write_pack(tmp_path / "p", model, **NEIGHBOURS)
    assert np.abs(logits(pack) - reference).max() > 1e-3
    report = check(pack)
    assert (report.verdict, codes(report)) == ("unsupported", {"RPE003"})


def test_fewer_columns_than_the_table_has(tmp_path: Path) -> None:
    """GatherElements takes as many entries of a row as it has places: here half of them."""
    wide = np.hstack([JOINT, JOINT])
    pack = write_pack(
        tmp_path / "p", decoder(joint(wide, by_elements(HEAD)), repeated=True), **NEIGHBOURS
    )
    assert logits(pack).shape == (1, TOKENS, 64)
    assert codes(check(pack)) == {"RPE003"}


# --- values doubled by way of rows -------------------------------------------------------------


def around(perm: tuple[int, ...] = (3, 1, 2, 0), *, frequencies: Any = PLAIN) -> Trig:
    """As optimum writes GLM and Helium: half of a doubled row, its entries picked twice as rows."""

    def make(g: Graph) -> tuple[str, str]:
        made = []
        for trig in waves(angles_by_mul(frequencies))(g):
            row = g.node("Unsqueeze", trig, g.integers(1))
            dim = g.node("Gather", g.node("Shape", row), g.scalar(3), axis=0)
            half = g.node("Unsqueeze", g.node("Div", dim, g.scalar(2)), g.integers(0))
            first = g.node("Slice", row, g.integers(0), half, g.integers(3), g.integers(1))
            rows = g.node("Transpose", first, perm=[3, 1, 2, 0])
            spread = g.node("Unsqueeze", rows, g.integers(1))
            wide = g.node("Expand", spread, g.integers(1, 2, 1, 1, 1))
            places = g.constant(np.argwhere(np.ones((PAIRS, 2))), np.int64)
            picked = g.node("GatherND", wide, places)
            back = g.node("Transpose", picked, perm=list(perm))
            made.append(g.node("Reshape", back, g.integers(1, -1, HEAD)))
        return made[0], made[1]

    return make


def test_entries_doubled_as_rows(tmp_path: Path, reference: np.ndarray) -> None:
    pack = write_pack(tmp_path / "p", decoder(around(), repeated=True), **NEIGHBOURS)
    assert np.abs(logits(pack) - reference).max() < 1e-5
    report = check(pack)
    assert (report.verdict, codes(report)) == ("ok", set()), report.text()
    slow = around(frequencies=500.0 ** -(np.arange(PAIRS) / PAIRS))
    other = write_pack(tmp_path / "q", decoder(slow, repeated=True), **NEIGHBOURS)
    assert codes(check(other)) == {"RPE001"}
    patch(other, tmp_path / "out")
    assert np.abs(logits(tmp_path / "out") - reference).max() < 1e-5


def test_rows_that_do_not_go_back_are_refused(tmp_path: Path, reference: np.ndarray) -> None:
    pack = write_pack(tmp_path / "p", decoder(around((1, 3, 0, 2)), repeated=True), **NEIGHBOURS)
    assert np.abs(logits(pack) - reference).max() > 1e-3
    assert codes(check(pack)) == {"RPE003"}


# --- heads of one projection -------------------------------------------------------------------


def with_heads(pick: Callable[[Graph, str], str], *, by: int = 2) -> Callable[..., str]:
    """A rotation of heads that are picked from a projection which makes more of them."""

    def rotate(g: Graph, x: str, trig: list[str], repeated: bool, name: str) -> str:
        (split,) = [n for n in g.nodes if x in n.output]
        reshape = next(n for n in g.nodes if split.input[0] in n.output)
        more = g.node("MatMul", reshape.input[0], g.weight(HEADS * HEAD, by * HEADS * HEAD))
        heads = pick(g, more)
        return rotated(g, g.node("Transpose", heads, perm=[0, 2, 1, 3]), trig, repeated, name)

    return rotate


def of_three_dims(g: Graph, x: str) -> str:
    """[batch, tokens, heads, 2, entries], as Persimmon."""
    parts = g.node("Reshape", x, g.integers(0, 0, HEADS, 2, HEAD))
    return g.node("Gather", parts, g.scalar(1), axis=3)


def of_heads(g: Graph, x: str) -> str:
    """Some heads of [batch, tokens, heads, entries], as Falcon."""
    parts = g.node("Reshape", x, g.integers(0, 0, 2 * HEADS, HEAD))
    return g.node("Gather", parts, g.integers(-2, -1), axis=2)


def of_rows(g: Graph, x: str) -> str:
    """The same as torch's newer exporter writes it."""
    parts = g.node("Reshape", x, g.integers(0, 0, 2 * HEADS, HEAD))
    rows = g.node("Transpose", parts, perm=[2, 0, 1, 3])
    picked = g.node("GatherND", rows, g.constant([[-2], [-1]], np.int64))
    return g.node("Transpose", picked, perm=[1, 2, 0, 3])


@pytest.mark.parametrize("pick", [of_three_dims, of_heads, of_rows])
def test_heads_of_one_projection(pick: Callable[[Graph, str], str], tmp_path: Path) -> None:
    right = decoder(waves(angles_by_mul()), rotate=with_heads(pick))
    pack = write_pack(tmp_path / "p", right)
    truth = logits(pack)
    report = check(pack)
    assert (report.verdict, codes(report)) == ("ok", set()), report.text()
    slow = waves(angles_by_mul(500.0 ** -(np.arange(PAIRS) / PAIRS)))
    other = write_pack(tmp_path / "q", decoder(slow, rotate=with_heads(pick)))
    assert np.abs(logits(other) - truth).max() > 1e-3
    assert codes(check(other)) == {"RPE001"}
    patch(other, tmp_path / "out")
    assert np.abs(logits(tmp_path / "out") - truth).max() < 1e-5


def of_entries(g: Graph, x: str) -> str:
    """Entries of a head in another order: other pairs are turned than it seems."""
    parts = g.node("Reshape", x, g.integers(0, 0, 2 * HEADS, HEAD))
    some = g.node("Slice", parts, g.integers(0), g.integers(HEADS), g.integers(2))
    return g.node("Gather", some, g.integers(*range(HEAD)[::-1]), axis=3)


def of_tokens(g: Graph, x: str) -> str:
    """Tokens in another order."""
    parts = g.node("Reshape", x, g.integers(0, 0, 2 * HEADS, HEAD))
    some = g.node("Slice", parts, g.integers(0), g.integers(HEADS), g.integers(2))
    return g.node("Gather", some, g.integers(*range(TOKENS)[::-1]), axis=1)


def by_an_input(g: Graph, x: str) -> str:
    """Heads that a graph input picks."""
    parts = g.node("Reshape", x, g.integers(0, 0, 2 * HEADS, HEAD))
    some = g.node("Slice", "position_ids", g.integers(0), g.integers(HEADS), g.integers(1))
    return g.node("Gather", parts, g.node("Squeeze", some, g.integers(0)), axis=2)


@pytest.mark.parametrize("pick", [of_entries, of_tokens, by_an_input])
def test_other_picks_are_refused(pick: Callable[[Graph, str], str], tmp_path: Path) -> None:
    pack = write_pack(tmp_path / "p", decoder(waves(angles_by_mul()), rotate=with_heads(pick)))
    assert logits(pack).shape == (1, TOKENS, 64)
    assert codes(check(pack)) == {"RPE003"}


# --- as onnxruntime's optimizer leaves it ------------------------------------------------------


@pytest.mark.parametrize(("perm", "verdict"), [((0, 2, 1), "ok"), ((1, 0, 2), "unsupported")])
def test_tokens_behind_entries(perm: tuple[int, ...], verdict: str, tmp_path: Path) -> None:
    """The Transpose of angles may stand behind Cos and Sin."""

    def trig(g: Graph) -> tuple[str, str]:
        row = g.node("Unsqueeze", "position_ids", g.integers(1))
        inverse = g.constant(PLAIN[None, :, None], name="inv_freq")
        angles = g.node("MatMul", inverse, g.node("Cast", row, to=TensorProto.FLOAT))
        both = g.node("Concat", angles, angles, axis=1)
        made = [g.node("Transpose", g.node(op, both), perm=list(perm)) for op in ("Cos", "Sin")]
        return made[0], made[1]

    report = check(write_pack(tmp_path / "p", decoder(trig)))
    assert report.verdict == verdict
