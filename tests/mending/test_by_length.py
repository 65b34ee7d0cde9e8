"""Tables by length: up to the border the old one bit for bit, beyond it the declared one.

References: the formulas in numpy (Peng's dynamic NTK and LongRoPE, arXiv 2402.13753) in
packs of tests/builders.py, and transformers 5.24.0 with the same weights.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import Tables, plain, rename_everything, tiny_pack
from mending.mended import TOKENS, mend, run
from mending.transformers_models import logits_of
from numpy.typing import NDArray

from packimport import check, patch
from packimport.errors import PatchError

FORMS = ["gqa", "rotary_embedding"]
BORDER, LONGEST = 64, 256
DYNAMIC = {"rope_type": "dynamic", "factor": 4.0}
SHORT = [1.0 + 0.125 * i for i in range(8)]
LONG = [1.0 + 1.5 * i for i in range(8)]
LONGROPE = {"rope_type": "longrope", "short_factor": SHORT, "long_factor": LONG}


def dynamic_pack(folder: Path, form: str, **settings: Any) -> Path:
    config = {"rope_scaling": DYNAMIC, "max_position_embeddings": BORDER}
    return tiny_pack(folder, rows=LONGEST, hidden=64, form=form, config=config, **settings)


def longrope_pack(folder: Path, form: str, **settings: Any) -> Path:
    config = {
        "model_type": "phi3",
        "rope_scaling": LONGROPE,
        "original_max_position_embeddings": BORDER,
        "max_position_embeddings": LONGEST,
    }
    return tiny_pack(folder, rows=LONGEST, hidden=64, form=form, config=config, **settings)


def longrope(factors: list[float], rows: int = LONGEST) -> Tables:
    scale = math.sqrt(1 + math.log(LONGEST / BORDER) / math.log(BORDER))
    inverse = 1 / (np.array(factors) * 10000.0 ** (np.arange(8) / 8))
    angles = np.outer(np.arange(rows), inverse)
    return scale * np.cos(angles), scale * np.sin(angles)


def base(length: int, theta: float = 10000.0, d: int = 16) -> float:
    """The base of dynamic NTK for a call of `length` positions."""
    growth = 4.0 * max(length, BORDER) / BORDER - 3.0
    return float(theta * growth ** (d / (d - 2)))


def near(one: NDArray[np.float32], other: NDArray[np.float32]) -> None:
    assert np.abs(one - other).max() < 5e-4


@pytest.mark.parametrize("stored", [{}, {"inline": True}, {"constants": True}], ids=str)
@pytest.mark.parametrize("form", FORMS)
def test_dynamic(tmp_path: Path, form: str, stored: dict[str, Any]) -> None:
    pack = dynamic_pack(tmp_path / "p", form, **stored)
    assert [f.code for f in check(pack).findings] == ["RPE012"]
    patched = mend(pack, tmp_path / "out")
    (change,) = patched.graph_changes
    assert change.change == "an If chooses the table: up to 64 positions, or beyond"
    assert patched.edits == ()
    for length in (BORDER // 2, BORDER):
        for decode in (0, 5):
            tokens = TOKENS[:length]
            old, new = (run(p, tokens, decode) for p in (pack, tmp_path / "out"))
            assert np.array_equal(old, new)
    length = BORDER * 3 // 2
    right = tiny_pack(
        tmp_path / "right",
        rows=length,
        hidden=64,
        form=form,
        tables=plain(length, 8, base(length)),
        **stored,
    )
    near(run(tmp_path / "out", TOKENS[:length]), run(right, TOKENS[:length]))


def test_a_wrong_table_of_dynamic_is_mended_too(tmp_path: Path) -> None:
    pack = dynamic_pack(tmp_path / "p", "gqa", tables=plain(LONGEST, 8, 500000.0))
    assert [f.code for f in check(pack).findings] == ["RPE001"]
    patched = mend(pack, tmp_path / "out")
    assert len(patched.edits) == 2
    for length in (BORDER, 96):
        right = tiny_pack(
            tmp_path / f"right {length}",
            rows=length,
            hidden=64,
            tables=plain(length, 8, base(length)),
        )
        near(run(tmp_path / "out", TOKENS[:length]), run(right, TOKENS[:length]))


FORMULA = "rope_by_length/dynamic"


@pytest.mark.parametrize(
    ("constant", "value"),
    [("theta", 20000.0), ("factor", 5.0), ("max", 32.0), ("factor_minus_1", 2.0), ("growth", 1.0)],
)
def test_a_formula_with_another_number_is_not_passed(
    tmp_path: Path, constant: str, value: float
) -> None:
    mend(dynamic_pack(tmp_path / "p", "gqa"), tmp_path / "out")
    path = tmp_path / "out/model.onnx"
    model = onnx.load(path, load_external_data=False)
    (tensor,) = [t for t in model.graph.initializer if t.name == f"packimport/{FORMULA}/{constant}"]
    tensor.raw_data = np.float32(value).tobytes()
    path.write_bytes(model.SerializeToString())
    report = check(tmp_path / "out")
    assert report.exit_code != 0
    assert {f.code for f in report.findings if f.severity == "error"} <= {"RPE003", "RPE025"}


@pytest.mark.parametrize("form", FORMS)
def test_no_verdict_rests_on_our_names(tmp_path: Path, form: str) -> None:
    packs = {
        "dynamic": dynamic_pack(tmp_path / "p", form),
        "longrope": longrope_pack(tmp_path / "q", form, tables=longrope(SHORT)),
    }
    for kind, pack in packs.items():
        out = tmp_path / kind
        mend(pack, out)
        rename_everything(out)
        assert check(out).verdict == "ok"


def test_a_border_at_another_length_is_not_passed(tmp_path: Path) -> None:
    mend(dynamic_pack(tmp_path / "p", "gqa"), tmp_path / "out")
    path = tmp_path / "out/model.onnx"
    model = onnx.load(path, load_external_data=False)
    (limit,) = [t for t in model.graph.initializer if t.name == "packimport/rope_by_length/limit"]
    limit.raw_data = np.int64(100).tobytes()
    path.write_bytes(model.SerializeToString())
    report = check(tmp_path / "out")
    assert "RPE022" in {f.code for f in report.findings}
    assert report.verdict != "ok"


@pytest.mark.parametrize("kept", ["short", "long", "neither"])
@pytest.mark.parametrize("form", FORMS)
def test_longrope(tmp_path: Path, form: str, kept: str) -> None:
    tables = {"short": longrope(SHORT), "long": longrope(LONG), "neither": plain(LONGEST, 8)}
    pack = longrope_pack(tmp_path / "p", form, tables=tables[kept])
    patched = mend(pack, tmp_path / "out")
    added = [r.where for r in patched.graph_changes if "is added" in r.change]
    assert [name.split("_")[-1] for name in added] == ["long" if kept == "short" else "short"] * 2
    assert bool(patched.edits) == (kept == "neither")
    for length, factors in ((BORDER, SHORT), (BORDER + 1, LONG), (200, LONG)):
        right = tiny_pack(
            tmp_path / f"right {length}",
            rows=LONGEST,
            hidden=64,
            form=form,
            tables=longrope(factors),
        )
        near(run(tmp_path / "out", TOKENS[:length]), run(right, TOKENS[:length]))


def test_a_short_table_of_few_rows(tmp_path: Path) -> None:
    # The exporter wrote the short table alone, up to the original length.
    pack = longrope_pack(tmp_path / "p", "gqa", tables=longrope(SHORT, BORDER))
    patched = mend(pack, tmp_path / "out")
    assert "a table of 256 x 8 is added" in {record.change for record in patched.graph_changes}
    right = tiny_pack(tmp_path / "right", rows=LONGEST, hidden=64, tables=longrope(LONG))
    near(run(tmp_path / "out", TOKENS), run(right, TOKENS))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_other_dtypes(tmp_path: Path, dtype: str) -> None:
    mend(dynamic_pack(tmp_path / "p", "gqa", dtype=dtype), tmp_path / "out")
    mend(
        longrope_pack(tmp_path / "q", "gqa", dtype=dtype, tables=longrope(SHORT)),
        tmp_path / "also out",
    )


def test_a_half_precision_pack_runs(tmp_path: Path) -> None:
    pack = dynamic_pack(tmp_path / "p", "gqa", dtype="float16")
    mend(pack, tmp_path / "out")
    assert np.array_equal(run(pack, TOKENS[:BORDER], 4), run(tmp_path / "out", TOKENS[:BORDER], 4))
    right = tiny_pack(
        tmp_path / "right", rows=96, hidden=64, dtype="float16", tables=plain(96, 8, base(96))
    )
    gap = np.abs(run(tmp_path / "out", TOKENS[:96]) - run(right, TOKENS[:96]))
    assert gap.max() < 0.05
    assert np.abs(run(pack, TOKENS[:96]) - run(right, TOKENS[:96])).max() > 0.2


def test_a_total_length_that_is_made_later_is_made_again(tmp_path: Path) -> None:
    def delay(model: onnx.ModelProto) -> None:
        """Let the nodes that make the total length stand right before the first attention."""
        late = [n for n in model.graph.node if n.output[0] in {"mask_shape", "length",
                                                               "total_length"}]  # fmt: skip
        for node in late:
            model.graph.node.remove(node)
        names = [node.op_type for node in model.graph.node]
        at = names.index("GroupQueryAttention")
        for offset, node in enumerate(late):
            model.graph.node.insert(at + offset, node)

    pack = dynamic_pack(tmp_path / "p", "rotary_embedding", change=delay)
    mend(pack, tmp_path / "out")
    assert np.array_equal(run(pack, TOKENS[:BORDER]), run(tmp_path / "out", TOKENS[:BORDER]))
    right = tiny_pack(tmp_path / "right", rows=96, hidden=64, tables=plain(96, 8, base(96)))
    near(run(tmp_path / "out", TOKENS[:96]), run(right, TOKENS[:96]))


def test_no_branch_hands_out_more_rows_than_are_in_use(tmp_path: Path) -> None:
    import onnxruntime

    mend(longrope_pack(tmp_path / "p", "gqa", tables=longrope(SHORT)), tmp_path / "out")
    model = onnx.load(tmp_path / "out/model.onnx")
    (chosen,) = [node for node in model.graph.node if node.op_type == "If"]
    for name in chosen.output:
        info = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [None, None])
        model.graph.output.append(info)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )
    for length in (5, 64, 65, 200):
        feeds: dict[str, Any] = {
            value.name: np.zeros((1, 2, 0, 16), np.float32) for value in session.get_inputs()
        }
        feeds["input_ids"] = TOKENS[None, :length]
        feeds["attention_mask"] = np.ones((1, length), np.int64)
        for table in session.run(list(chosen.output), feeds):
            assert table.shape == (length, 8)


def test_bytes_only_refuses(tmp_path: Path) -> None:
    pack = dynamic_pack(tmp_path / "p", "gqa")
    with pytest.raises(PatchError, match=r"RPE012.*leave --bytes-only out"):
        patch(pack, tmp_path / "out", bytes_only=True)


def test_a_graph_without_a_total_length_is_refused(tmp_path: Path) -> None:
    def two_lengths(model: onnx.ModelProto) -> None:
        second = [n for n in model.graph.node if n.op_type == "GroupQueryAttention"][1]
        model.graph.node.insert(
            0, onnx.helper.make_node("Identity", ["total_length"], ["other_length"], "/other")
        )
        cast = next(n for n in model.graph.node if n.output[0] == "total_length")
        model.graph.node.remove(cast)
        at = [n.output[0] for n in model.graph.node].index("length") + 1
        model.graph.node.insert(at, cast)
        other = next(n for n in model.graph.node if n.name == "/other")
        model.graph.node.remove(other)
        model.graph.node.insert(at + 1, other)
        second.input[6] = "other_length"

    pack = dynamic_pack(tmp_path / "p", "gqa", change=two_lengths)
    with pytest.raises(PatchError, match="do not take one value as their total length"):
        patch(pack, tmp_path / "out")


@pytest.mark.oracle
@pytest.mark.parametrize("form", FORMS)
def test_dynamic_equals_transformers(tmp_path: Path, form: str) -> None:
    mend(dynamic_pack(tmp_path / "p", form), tmp_path / "out")
    settings = {
        "max_position_embeddings": BORDER,
        "rope_parameters": {**DYNAMIC, "rope_theta": 10000.0},
    }
    # Decoding, transformers takes the base of the length at each step, and keys that were
    # rotated and cached before stay as they are.
    for length, decode in ((32, 0), (64, 0), (96, 0), (32, 8), (64, 8), (80, 32), (160, 20)):
        tokens = TOKENS[:length]
        expected = logits_of("Llama", tmp_path / "p", tokens, decode, **settings)
        near(run(tmp_path / "out", tokens, decode), expected)


@pytest.mark.oracle
@pytest.mark.parametrize("form", FORMS)
def test_longrope_equals_transformers_on_both_sides(tmp_path: Path, form: str) -> None:
    mend(longrope_pack(tmp_path / "p", form, tables=longrope(SHORT)), tmp_path / "out")
    settings = {
        "max_position_embeddings": LONGEST,
        "original_max_position_embeddings": BORDER,
        "rope_parameters": {**LONGROPE, "rope_theta": 10000.0},
    }
    for length, decode in ((32, 0), (64, 0), (65, 0), (200, 0), (64, 8), (72, 16), (120, 100)):
        tokens = TOKENS[:length]
        expected = logits_of("Phi3", tmp_path / "p", tokens, decode, **settings)
        near(run(tmp_path / "out", tokens, decode), expected)
