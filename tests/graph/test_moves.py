"""Entries of a head that change places on the way: refused, or told by how they are paired.

The truth of a graph is what onnxruntime 1.32 makes of it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from builders import tiny_pack
from graphs import edit, facts, node
from mending.mended import run
from onnx import helper, numpy_helper
from plain_graphs import (
    HEAD,
    HEADS,
    PAIRS,
    Graph,
    angles_by_mul,
    decoder,
    gathered,
    rotated,
    twice,
    waves,
    write_pack,
)
from test_plain_ops import COS, SIN, codes, logits

from packimport import check

Rotate = Callable[..., str]
MICROSOFT = "com.microsoft"


def by_halves(g: Graph, x: str) -> str:
    """Each half's entries next to those of the other half."""
    split = g.node("Reshape", x, g.integers(0, 0, 0, 2, PAIRS))
    turned = g.node("Transpose", split, perm=[0, 1, 2, 4, 3])
    return g.node("Reshape", turned, g.integers(0, 0, 0, HEAD))


def by_four(g: Graph, x: str) -> str:
    """The same, in four dims."""
    split = g.node("Reshape", x, g.integers(0, -1, 2, PAIRS))
    turned = g.node("Transpose", split, perm=[0, 1, 3, 2])
    return g.node("Reshape", turned, g.integers(0, HEADS, -1, HEAD))


def with_the_heads(g: Graph, x: str) -> str:
    """Halves change places with heads: no transpose moves the last dim."""
    split = g.node("Reshape", x, g.integers(0, HEADS, -1, PAIRS))
    turned = g.node("Transpose", split, perm=[0, 2, 1, 3])
    back = g.node("Transpose", turned, perm=[0, 2, 1, 3])
    return g.node("Reshape", back, g.integers(0, 0, -1, HEAD))


def backwards(g: Graph, x: str) -> str:
    return g.node("Slice", x, g.integers(-1), g.integers(-(2**62)), g.integers(3), g.integers(-1))


def sorted_apart(g: Graph, x: str) -> str:
    """Neighbours sorted apart, as DeepSeek's models do before they turn halves."""
    split = g.node("Reshape", x, g.integers(0, 0, 0, PAIRS, 2))
    turned = g.node("Transpose", split, perm=[0, 1, 2, 4, 3])
    return g.node("Reshape", turned, g.integers(0, 0, 0, HEAD))


def after(move: Callable[[Graph, str], str], sides: str = "qk") -> Rotate:
    def rotate(g: Graph, x: str, trig: list[str], repeated: bool, name: str) -> str:
        if name[0] not in sides:
            return rotated(g, x, trig, repeated, name)
        return move(g, rotated(g, x, trig, repeated, f"{name}_turned"))

    return rotate


def before(move: Callable[[Graph, str], str], sides: str = "qk") -> Rotate:
    def rotate(g: Graph, x: str, trig: list[str], repeated: bool, name: str) -> str:
        return rotated(g, move(g, x) if name[0] in sides else x, trig, repeated, name)

    return rotate


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, np.ndarray]:
    """Logits with stored tables of theta 10000, by how the entries are paired."""
    made = {}
    for repeated in (False, True):
        tables = gathered(twice(COS, repeated), twice(SIN, repeated))
        pack = tmp_path_factory.mktemp("reference") / "p"
        made[repeated] = logits(write_pack(pack, decoder(tables, repeated=repeated)))
    return made


@pytest.mark.parametrize("side", ["q", "k"])
@pytest.mark.parametrize("move", [by_halves, by_four, backwards])
def test_moved_behind_the_rotation(
    move: Callable[[Graph, str], str],
    side: str,
    tmp_path: Path,
    reference: dict[bool, np.ndarray],
) -> None:
    model = decoder(waves(angles_by_mul()), rotate=after(move, side))
    pack = write_pack(tmp_path / "p", model)
    assert np.abs(logits(pack) - reference[False]).max() > 1e-3
    report = check(pack)
    assert report.verdict == "unsupported", report.text()
    assert "RPE003" in codes(report)
    # The node is named.
    moving = "Slice" if move is backwards else "Transpose"
    assert any(f"{moving} node /v" in finding.message for finding in report.findings)


def test_parts_of_heads_are_not_followed(tmp_path: Path) -> None:
    model = decoder(waves(angles_by_mul()), rotate=after(with_the_heads))
    report = check(write_pack(tmp_path / "p", model))
    assert report.verdict == "unsupported"
    assert any("splits heads" in finding.message for finding in report.findings)


@pytest.mark.parametrize("sides", ["q", "qk"])
def test_moved_before_the_rotation(
    sides: str, tmp_path: Path, reference: dict[bool, np.ndarray]
) -> None:
    model = decoder(waves(angles_by_mul()), rotate=before(by_halves, sides))
    pack = write_pack(tmp_path / "p", model)
    assert np.abs(logits(pack) - reference[False]).max() > 1e-3
    report = check(pack)
    assert report.verdict == "unsupported"
    assert any("before the rotation" in finding.message for finding in report.findings)


def test_neighbours_that_are_sorted_apart_first(
    tmp_path: Path, reference: dict[bool, np.ndarray]
) -> None:
    model = decoder(waves(angles_by_mul()), rotate=before(sorted_apart))
    pack = write_pack(tmp_path / "p", model)
    # Scores do not change where q and k are moved alike.
    assert np.abs(logits(pack) - reference[True]).max() < 1e-4
    assert set(codes(check(pack))) == {"RPE007"}
    other = write_pack(tmp_path / "cohere", model, model_type="cohere")
    assert check(other).verdict == "ok"
    model = decoder(waves(angles_by_mul()), rotate=before(sorted_apart, "q"))
    report = check(write_pack(tmp_path / "one", model))
    assert report.verdict == "unsupported"
    assert any("one has its neighbours sorted apart" in f.message for f in report.findings)


def test_halves_that_nothing_rotates_may_move(tmp_path: Path) -> None:
    def rotate(g: Graph, x: str, trig: list[str], repeated: bool, name: str) -> str:
        return by_halves(g, x) if name.endswith("1") else rotated(g, x, trig, repeated, name)

    pack = write_pack(tmp_path / "p", decoder(waves(angles_by_mul()), rotate=rotate))
    assert facts(pack).unrotated == (1,)
    assert facts(pack).unread == ()


def moved(op: str, output: bool) -> Callable[[onnx.ModelProto], None]:
    """The query of layer 1 moved by halves, before or behind what rotates it."""

    def change(model: onnx.ModelProto) -> None:
        attention = node(model, "GroupQueryAttention", 1)
        target = attention
        if op == "RotaryEmbedding":
            made = {out: n for n in model.graph.node for out in n.output}
            target = attention if output else made[attention.input[0]]
        shapes = {"split": [0, 0, -1, PAIRS, 2], "back": [0, 0, -1]}
        for name, shape in shapes.items():
            tensor = numpy_helper.from_array(np.array(shape, np.int64), name)
            model.graph.initializer.append(tensor)
        added = [
            helper.make_node("Reshape", [target.input[0], "split"], ["m0"], "/m0"),
            helper.make_node("Transpose", ["m0"], ["m1"], "/m1", perm=[0, 1, 2, 4, 3]),
            helper.make_node("Reshape", ["m1", "back"], ["m2"], "/m2"),
        ]
        at = list(model.graph.node).index(target)
        target.input[0] = "m2"
        for offset, extra in enumerate(added):
            model.graph.node.insert(at + offset, extra)

    return change


@pytest.mark.parametrize(("form", "op"), [("gqa", ""), ("rotary_embedding", "RotaryEmbedding")])
@pytest.mark.parametrize("behind", [False, True])
def test_moved_around_an_op(form: str, op: str, behind: bool, tmp_path: Path) -> None:
    pack = tiny_pack(tmp_path / "p", layers=2, config={}, form=form, hidden=64)
    tokens = np.arange(20) % 64
    right = run(pack, tokens)
    edit(pack, moved(op, behind))
    assert np.abs(run(pack, tokens) - right).max() > 1e-3
    report = check(pack)
    assert report.verdict == "unsupported", report.text()
    assert any("layer" in f.message or "query" in f.message for f in report.findings)


def test_heads_that_the_attention_does_not_take(tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        for target in (n for n in model.graph.node if n.op_type == "RotaryEmbedding"):
            target.attribute.append(helper.make_attribute("num_heads", 2))

    pack = tiny_pack(tmp_path / "p", layers=2, config={}, form="rotary_embedding", hidden=64)
    assert check(pack).verdict == "ok"
    report = check(edit(pack, change))
    # Four heads of the query, two of the key.
    assert report.verdict == "unsupported"
    assert all("has num_heads = 2" in f.message for f in report.findings), report.text()
    assert any("takes 4 heads of its query" in f.message for f in report.findings)
