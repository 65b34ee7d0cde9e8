"""A table that a Slice cuts has the rows that are left, as onnxruntime counts them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from builders import tiny_pack
from onnx import TensorProto, helper
from ort_version import ORT

from packimport import check


def cut(ends: dict[str, int]) -> Callable[[onnx.ModelProto], None]:
    """The tables of all nodes through a Slice from row 0 to an end."""

    def change(model: onnx.ModelProto) -> None:
        graph = model.graph
        numbers = {"start": 0, **{f"{name}_end": end for name, end in ends.items()}}
        graph.initializer.extend(
            helper.make_tensor(name, TensorProto.INT64, [1], [value])
            for name, value in numbers.items()
        )
        for node in graph.node:
            if node.op_type in {"GroupQueryAttention", "RotaryEmbedding"}:
                node.input[:] = [f"{name}_cut" if name in ends else name for name in node.input]
        for name in ends:
            inputs = [name, "start", f"{name}_end", "start"]
            graph.node.insert(0, helper.make_node("Slice", inputs, [f"{name}_cut"]))

    return change


def runs(pack: Path, tokens: int) -> bool:
    """Whether onnxruntime takes a prompt of so many tokens."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        str(pack / "model.onnx"), options, providers=["CPUExecutionProvider"]
    )
    feeds = {
        "input_ids": np.arange(tokens)[None] % 64,
        "attention_mask": np.ones((1, tokens), np.int64),
        "position_ids": np.arange(tokens)[None],
    }
    for value in session.get_inputs():
        if value.name.startswith("past"):
            feeds[value.name] = np.zeros((1, value.shape[1], 0, value.shape[3]), np.float32)
    try:
        session.run(["logits"], {v.name: feeds[v.name] for v in session.get_inputs()})
    except Exception as error:  # onnxruntime's own classes are no public names
        assert "cos" in str(error) or "position" in str(error) or "index" in str(error), error
        return False
    return True


@pytest.mark.parametrize("form", ["gqa", "rotary_embedding"])
@pytest.mark.parametrize(
    ("end", "rows"), [(64, 64), (-1, 255), (-200, 56), (256, 256), (2**31, 256)]
)
def test_the_rows_of_a_cut_table_are_those_that_are_left(
    end: int, rows: int, form: str, tmp_path: Path
) -> None:
    made = cut({"cos": end, "sin": end})
    pack = tiny_pack(tmp_path / "p", rows=256, config={}, inline=True, form=form, change=made)
    report = check(pack)
    assert [site.site.rows for site in report.sites] == [rows]
    errors = [f.code for f in report.findings if f.severity == "error"]
    assert errors == ([] if rows == 256 else ["RPE009"])
    assert runs(pack, rows)
    assert not runs(pack, rows + 1)


def test_one_of_two_tables_cut(tmp_path: Path) -> None:
    made = cut({"cos": 64})
    pack = tiny_pack(tmp_path / "p", rows=256, config={}, inline=True, change=made)
    report = check(pack)
    assert (report.verdict, report.exit_code) == ("unsupported", 3)
    assert "different numbers of rows" in report.text()
    # Older ones take such tables.
    assert runs(pack, 9) == (ORT < (1, 31))


def test_a_table_cut_to_nothing(tmp_path: Path) -> None:
    made = cut({"cos": -900, "sin": -900})
    report = check(tiny_pack(tmp_path / "p", rows=256, config={}, inline=True, change=made))
    assert (report.verdict, report.exit_code) == ("unsupported", 3)
    assert "no row at all" in report.text()


def test_an_end_that_the_graph_computes(tmp_path: Path) -> None:
    """The tokens of one call: what is behind them can't be told by the graph alone."""

    def change(model: onnx.ModelProto) -> None:
        cut({"cos": 64, "sin": 64})(model)
        for node in model.graph.node:
            if node.op_type == "Slice":
                node.input[2] = "tokens"
        model.graph.initializer.append(helper.make_tensor("at", TensorProto.INT64, [1], [1]))
        model.graph.node.insert(0, helper.make_node("Gather", ["ids_shape", "at"], ["tokens"]))
        model.graph.node.insert(0, helper.make_node("Shape", ["input_ids"], ["ids_shape"]))

    report = check(tiny_pack(tmp_path / "p", rows=256, config={}, inline=True, change=change))
    assert (report.verdict, report.exit_code) == ("unsupported", 3), report.text()
    assert "an end that is not known" in report.text()
