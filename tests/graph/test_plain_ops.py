"""Rotation in plain ops: which graphs are read, and that a verdict is what the logits say.

The truth of a graph is what onnxruntime 1.32 makes of it: its logits equal those of the
same weights with stored tables of the declared schedule (builders.plain), or they don't.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from builders import plain, rename_everything
from graphs import edit, facts, node
from onnx import TensorProto, helper, numpy_helper
from plain_graphs import (
    HEAD,
    PAIRS,
    PLAIN,
    Graph,
    angles_by_matmul,
    angles_by_mul,
    by_where,
    change_config,
    decoder,
    doubled,
    folded,
    from_theta,
    gathered,
    rotated,
    turned,
    twice,
    waves,
    write_pack,
)

from packimport import check, patch
from packimport.audit.report import Report

ROWS, TOKENS = 64, 12
COS, SIN = plain(ROWS, PAIRS)
OTHER = 500.0 ** -(np.arange(PAIRS) / PAIRS)
TABLES = gathered(twice(COS), twice(SIN))
LINEAR = {"rope_scaling": {"rope_type": "linear", "factor": 2.0}}


def codes(report: Report) -> list[str]:
    return [finding.code for finding in report.findings]


def logits(pack: Path, start: int = 0) -> np.ndarray:
    session = ort.InferenceSession(str(pack / "model.onnx"), providers=["CPUExecutionProvider"])
    ids = (np.arange(TOKENS) * 5 % 64)[None]
    fed: dict[str, Any] = {"input_ids": ids, "position_ids": np.arange(TOKENS)[None] + start}
    for value in session.get_inputs():
        if value.name.startswith("past"):
            fed[value.name] = np.zeros((1, value.shape[1], 0, HEAD), np.float32)
    taken = {value.name for value in session.get_inputs()}
    return np.asarray(session.run(["logits"], {k: v for k, v in fed.items() if k in taken})[0])


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, np.ndarray]:
    """Logits with stored tables of theta 10000, by how the entries are paired."""
    made = {}
    for repeated in (False, True):
        tables = gathered(twice(COS, repeated), twice(SIN, repeated))
        pack = tmp_path_factory.mktemp("reference") / "p"
        made[repeated] = logits(write_pack(pack, decoder(tables, repeated=repeated)))
    return made


RIGHT: dict[str, dict[str, Any]] = {
    "MatMul": {"trig": waves(angles_by_matmul())},
    "MatMul with a factor of 1": {"trig": waves(angles_by_matmul(), 1.0)},
    "Mul": {"trig": waves(angles_by_mul())},
    "Mul, repeated": {"trig": waves(angles_by_mul(repeated=True)), "repeated": True},
    "theta": {"trig": waves(from_theta(10000.0))},
    "theta, divided": {"trig": waves(from_theta(10000.0, divided=True))},
    "Gather": {"trig": TABLES},
    "Gather of a Slice": {"trig": gathered(twice(COS), twice(SIN), sliced=True)},
    "Gather, repeated": {"trig": gathered(twice(COS, True), twice(SIN, True)), "repeated": True},
    "static": {"trig": folded(twice(COS[:TOKENS]), twice(SIN[:TOKENS]))},
    "a cache": {"trig": waves(angles_by_matmul()), "cache": True},
    "q and k of their own": {"trig": [waves(angles_by_matmul()), waves(angles_by_mul())]},
}
WRONG: dict[str, dict[str, Any]] = {
    "MatMul": {"trig": waves(angles_by_matmul(OTHER))},
    "a factor": {"trig": waves(angles_by_mul(), 1.5)},
    "theta": {"trig": waves(from_theta(500.0))},
    "Gather": {"trig": gathered(*(twice(part) for part in plain(ROWS, PAIRS, 500.0)))},
    "static": {"trig": folded(*(twice(p) for p in plain(TOKENS, PAIRS, 500.0)))},
    "one of q and k": {"trig": [waves(angles_by_mul()), waves(angles_by_mul(OTHER))]},
    "one half of a row": {"trig": gathered(np.hstack([COS, COS[::-1]]), twice(SIN))},
}


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
    pack = write_pack(tmp_path / "p", decoder(**WRONG[name]))
    assert np.abs(logits(pack) - reference[False]).max() > 1e-3
    report = check(pack)
    assert report.verdict == "mismatch", report.text()
    by_theta = name == "theta"
    expected = {"RPE025"} if by_theta else {"RPE001"}
    assert set(codes(report)) - {"RPE019"} == expected
    assert ("RPE019" in codes(report)) == (name == "one of q and k")
    if by_theta:
        return  # no bytes hold its frequencies
    patch(pack, tmp_path / "out")
    assert check(tmp_path / "out").verdict == "ok"
    assert np.abs(logits(tmp_path / "out") - reference[False]).max() < 1e-4


def test_frequencies_by_length(tmp_path: Path) -> None:
    lists = {"short_factor": [1.0] * PAIRS, "long_factor": [2.0] * PAIRS}
    block = {"rope_type": "longrope", "original_max_position_embeddings": 16, **lists}
    # Phi-3's class has the key beside the block.
    config = {
        "model_type": "phi3",
        "original_max_position_embeddings": 16,
        "rope_scaling": {**block, "attention_factor": 1.0},
    }
    model = decoder(waves(by_where(PLAIN, PLAIN / 2, 16)))
    pack = write_pack(tmp_path / "p", model, **config)
    report = check(pack)
    assert (report.verdict, codes(report)) == ("ok", [])
    assert [(j.site.length.limit, j.site.length.long) for j in report.sites if j.site.length] == [
        (16, True),
        (16, False),
    ]
    other = write_pack(tmp_path / "q", decoder(waves(by_where(PLAIN, PLAIN / 2, 20))), **config)
    assert codes(check(other)) == ["RPE022"]
    # The lists the wrong way round: both are wrong, and bytes mend them.
    turned_round = write_pack(
        tmp_path / "r", decoder(waves(by_where(PLAIN / 2, PLAIN, 16))), **config
    )
    assert codes(check(turned_round)) == ["RPE001", "RPE001"]
    patch(turned_round, tmp_path / "out")
    assert check(tmp_path / "out").verdict == "ok"


def test_one_list_where_two_are_declared(tmp_path: Path) -> None:
    lists = {"short_factor": [1.0] * PAIRS, "long_factor": [2.0] * PAIRS}
    block = {"rope_type": "longrope", "original_max_position_embeddings": 16, **lists}
    pack = write_pack(
        tmp_path / "p", decoder(waves(angles_by_mul())), model_type="phi3",
        original_max_position_embeddings=16, rope_scaling={**block, "attention_factor": 1.0},
    )  # fmt: skip
    assert codes(check(pack)) == ["RPE012"]


YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "attention_factor": 1.5,
}


def test_a_missing_attention_factor(tmp_path: Path) -> None:
    config = {"rope_scaling": {"rope_type": "linear", "factor": 1.0}}
    pack = write_pack(tmp_path / "p", decoder(waves(angles_by_mul())), **config)
    assert check(pack).verdict == "ok"
    change_config(pack, rope_scaling=YARN)
    report = check(pack)
    assert set(codes(report)) == {"RPE001", "RPE024"}


def test_an_attention_factor_that_others_use_is_not_rewritten(tmp_path: Path) -> None:
    def trig(g: Graph) -> tuple[str, str]:
        angles = angles_by_mul()(g)
        shared = g.constant(1.5)
        g.node("Mul", g.node("Cast", "input_ids", to=TensorProto.FLOAT), shared)
        cos, sin = (g.node("Mul", g.node(op, angles), shared) for op in ("Cos", "Sin"))
        return cos, sin

    report = check(write_pack(tmp_path / "p", decoder(trig)))
    assert codes(report) == ["RPE024"]


@pytest.mark.parametrize(
    "angles",
    [
        angles_by_matmul(dtype=np.float16),
        lambda g: doubled(
            g,
            g.node(
                "Cast",
                g.node(
                    "Mul",
                    g.node("Cast", g.node("Unsqueeze", "position_ids", g.integers(2)),
                           to=TensorProto.FLOAT16),
                    g.constant(PLAIN, np.float16),
                ),
                to=TensorProto.FLOAT,
            ),
            False,
        ),
    ],
    ids=["frequencies", "positions"],
)  # fmt: skip
def test_half_precision(angles: Any, tmp_path: Path) -> None:
    report = check(write_pack(tmp_path / "p", decoder(waves(angles))))
    assert (report.verdict, codes(report)) == ("mismatch", ["RPE021"])


# --- refused -------------------------------------------------------------------------------


def swapped(g: Graph) -> tuple[str, str]:
    cos, sin = waves(angles_by_mul())(g)
    return sin, cos


def by_rows(g: Graph) -> tuple[str, str]:
    """Positions that are counted from 0 at every call, beside a key cache."""
    length = g.node("Gather", g.node("Shape", "input_ids"), g.scalar(1))
    counted = g.node("Range", g.scalar(0), length, g.scalar(1))
    row = g.node("Unsqueeze", g.node("Unsqueeze", counted, g.integers(0)), g.integers(2))
    positions = g.node("Cast", row, to=TensorProto.FLOAT)
    angles = doubled(g, g.node("Mul", positions, g.constant(PLAIN)), False)
    return g.node("Cos", angles), g.node("Sin", angles)


def shifted(g: Graph) -> tuple[str, str]:
    """Positions plus one."""
    more = g.node("Add", "position_ids", g.scalar(1))
    floats = g.node("Cast", g.node("Unsqueeze", more, g.integers(2)), to=TensorProto.FLOAT)
    angles = doubled(g, g.node("Mul", floats, g.constant(PLAIN)), False)
    return g.node("Cos", angles), g.node("Sin", angles)


def an_unknown_op(g: Graph) -> tuple[str, str]:
    angles = g.node("Tanh", angles_by_mul()(g))
    return g.node("Cos", angles), g.node("Sin", angles)


def by_something_else(g: Graph) -> tuple[str, str]:
    """Frequencies that are chosen by a token."""
    first = g.node("Gather", g.node("Reshape", "input_ids", g.integers(-1)), g.scalar(0))
    chosen = g.node(
        "Where", g.node("Greater", first, g.scalar(3)), g.constant(PLAIN), g.constant(OTHER)
    )
    floats = g.node(
        "Cast", g.node("Unsqueeze", "position_ids", g.integers(2)), to=TensorProto.FLOAT
    )
    angles = doubled(g, g.node("Mul", floats, chosen), False)
    return g.node("Cos", angles), g.node("Sin", angles)


REFUSED = {
    "swapped": (swapped, {}, "takes Sin as its cos"),
    "rows": (by_rows, {"cache": True}, "start anew at each call"),
    "shifted": (shifted, {}, "Add"),
    "unknown op": (an_unknown_op, {}, "Tanh"),
    "condition": (by_something_else, {}, "not the total length"),
    "whole tables": (folded(twice(COS), twice(SIN)), {"cache": True}, "not picked by position"),
}


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_refused(name: str, tmp_path: Path) -> None:
    trig, options, reason = REFUSED[name]
    report = check(write_pack(tmp_path / "p", decoder(trig, **options)))
    assert (report.verdict, report.exit_code) == ("unsupported", 3)
    assert any(reason in f.message for f in report.findings), report.text()
    assert report.sites == ()


def test_positions_from_zero_without_a_cache_are_the_positions(tmp_path: Path) -> None:
    report = check(write_pack(tmp_path / "p", decoder(by_rows)))
    assert (report.verdict, codes(report)) == ("ok", [])


def another_turn(g: Graph, x: str, trig: list[str], repeated: bool, name: str) -> str:
    """x * cos + [x2, -x1] * sin: backwards."""
    backwards = g.node("Neg", turned(g, x, repeated))
    return g.node("Add", g.node("Mul", x, trig[0]), g.node("Mul", backwards, trig[1]), name=name)


def on_the_way(op: str, **attributes: Any) -> Any:
    """A rotation behind another op, which might rotate."""

    def rotate(g: Graph, x: str, trig: list[str], repeated: bool, name: str) -> str:
        return rotated(g, g.node(op, x, **attributes), trig, repeated, name)

    return rotate


@pytest.mark.parametrize("rotate", [another_turn, on_the_way("Tanh"), on_the_way("Sin")])
def test_other_ways_to_rotate_are_refused(rotate: Any, tmp_path: Path) -> None:
    report = check(write_pack(tmp_path / "p", decoder(waves(angles_by_mul()), rotate=rotate)))
    assert report.verdict == "unsupported"
    assert {"RPE003"} == set(codes(report))


def test_a_rotation_twice_is_refused(tmp_path: Path) -> None:
    def rotate(g: Graph, x: str, trig: list[str], repeated: bool, name: str) -> str:
        return rotated(g, rotated(g, x, trig, repeated, f"{name}_once"), trig, repeated, name)

    found = facts(write_pack(tmp_path / "p", decoder(waves(angles_by_mul()), rotate=rotate)))
    assert any("rotated 2 times" in unread.reason for unread in found.unread)


def test_a_layer_without_rotation(tmp_path: Path) -> None:
    def rotate(g: Graph, x: str, trig: list[str], repeated: bool, name: str) -> str:
        return x if name.endswith("1") else rotated(g, x, trig, repeated, name)

    pack = write_pack(tmp_path / "p", decoder(waves(angles_by_mul()), rotate=rotate))
    assert facts(pack).unrotated == (1,)
    assert codes(check(pack)) == ["RPE006"]


def test_part_of_a_head(tmp_path: Path) -> None:
    """Half of the entries rotate, as in Phi; the declared table is half as wide."""
    half = 10000.0 ** -(np.arange(PAIRS // 2) / (PAIRS // 2))

    def rotate(g: Graph, x: str, trig: list[str], repeated: bool, name: str) -> str:
        front, back = (
            g.node("Slice", x, g.integers(a), g.integers(b), g.integers(3))
            for a, b in ((0, PAIRS), (PAIRS, 2**62))
        )
        one = g.node("Slice", front, g.integers(0), g.integers(PAIRS // 2), g.integers(3))
        other = g.node("Slice", front, g.integers(PAIRS // 2), g.integers(2**62), g.integers(3))
        cross = g.node("Concat", g.node("Neg", other), one, axis=-1)
        turn = g.node("Add", g.node("Mul", front, trig[0]), g.node("Mul", cross, trig[1]))
        return g.node("Concat", turn, back, axis=-1, name=name)

    model = decoder(waves(angles_by_mul(half)), rotate=rotate)
    pack = write_pack(tmp_path / "p", model, model_type="phi", partial_rotary_factor=0.5)
    assert logits(pack).shape == (1, TOKENS, 64)
    report = check(pack)
    assert (report.verdict, codes(report)) == ("ok", [])
    assert report.sites[0].site.rotary_dim == PAIRS
    change_config(pack, partial_rotary_factor=1.0)
    assert set(codes(check(pack))) == {"RPE008"}


@pytest.mark.parametrize(("order", "verdict"), [(1, "ok"), (-1, "unsupported"), (2, "unsupported")])
def test_the_part_that_does_not_rotate_is_gathered(
    order: int, verdict: str, tmp_path: Path
) -> None:
    """As builder 0.18.0 writes Qwen3.5 for TensorRT RTX: entries by their numbers, in order."""
    half = 10000.0 ** -(np.arange(PAIRS // 2) / (PAIRS // 2))
    rest = tuple(range(PAIRS, 2 * PAIRS))[::order]

    def rotate(g: Graph, x: str, trig: list[str], repeated: bool, name: str) -> str:
        front = g.node("Slice", x, g.integers(0), g.integers(PAIRS), g.integers(3))
        back = g.node("Gather", x, g.integers(*rest, *rest[: PAIRS - len(rest)]), axis=-1)
        one = g.node("Slice", front, g.integers(0), g.integers(PAIRS // 2), g.integers(3))
        other = g.node("Slice", front, g.integers(PAIRS // 2), g.integers(2**62), g.integers(3))
        cross = g.node("Concat", g.node("Neg", other), one, axis=-1)
        turn = g.node("Add", g.node("Mul", front, trig[0]), g.node("Mul", cross, trig[1]))
        return g.node("Concat", turn, back, axis=-1, name=name)

    model = decoder(waves(angles_by_mul(half)), rotate=rotate)
    pack = write_pack(tmp_path / "p", model, model_type="phi", partial_rotary_factor=0.5)
    assert logits(pack).shape == (1, TOKENS, 64)
    assert check(pack).verdict == verdict


def test_frequencies_that_something_else_takes(tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        model.graph.node.append(helper.make_node("Neg", ["inv_freq"], ["more"]))

    pack = edit(write_pack(tmp_path / "p", decoder(waves(angles_by_mul()))), change)
    (unread,) = facts(pack).unread
    assert "inv_freq is also used by the Neg node" in unread.reason


def test_cos_that_no_rotation_takes(tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        cos = node(model, "Cos")
        model.graph.node.append(helper.make_node("Cos", cos.input[:1], ["more"], "/more"))

    pack = edit(write_pack(tmp_path / "p", decoder(waves(angles_by_mul()))), change)
    reasons = {unread.node: unread.reason for unread in facts(pack).unread}
    assert "no rotation is known to take" in reasons["/more"]


def test_external_frequencies(tmp_path: Path) -> None:
    """Frequencies in a data file are mended there."""
    model = decoder(waves(angles_by_mul(OTHER)))
    pack = write_pack(tmp_path / "p", model)
    onnx.save_model(
        model, str(pack / "model.onnx"), save_as_external_data=True, location="model.onnx.data",
        size_threshold=0,
    )  # fmt: skip
    graph = (pack / "model.onnx").read_bytes()
    assert codes(check(pack)) == ["RPE001"]
    patch(pack, tmp_path / "out")
    assert (tmp_path / "out" / "model.onnx").read_bytes() == graph
    loaded = onnx.load(str(tmp_path / "out" / "model.onnx"))
    (stored,) = [t for t in loaded.graph.initializer if t.name == "inv_freq"]
    assert np.allclose(numpy_helper.to_array(stored), PLAIN, rtol=1e-6)
