"""The door to onnxruntime."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from counting import counting_pack, expected

from forward.session import Port, Settings, open_session
from packimport.errors import DependencyError, GraphError


def test_without_onnxruntime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(DependencyError, match=r"pip install onnxruntime"):
        open_session(tmp_path / "model.onnx", "model.onnx")


def test_ports(tmp_path: Path) -> None:
    path = counting_pack(tmp_path / "p", dtype="bfloat16", ids="int32", last="static")
    session = open_session(path / "model.onnx", "model.onnx")
    assert session.version == onnxruntime.__version__
    assert session.inputs["input_ids"] == Port("input_ids", "int32", (None, None))
    assert session.outputs["logits"].text() == "bfloat16 [?, 1, 8]"


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_an_array_outlives_its_value(tmp_path: Path, dtype: str) -> None:
    path = counting_pack(tmp_path / "p", dtype=dtype, ids="int64")
    session = open_session(path / "model.onnx", "model.onnx", Settings(threads=1))

    def logits(tokens: list[int]) -> np.ndarray:
        feeds = {
            "input_ids": session.value(np.array([tokens])),
            "attention_mask": session.value(np.ones((1, len(tokens)), np.int64)),
            "past_key_values.0.key": session.empty((1, 1, 0, 8), dtype),
        }
        return session.run(feeds, ["logits"])["logits"].array()

    first = logits([1, 2, 3])
    for _ in range(20):
        logits([4, 5, 6])
    gc.collect()
    logits([4, 5, 6])
    assert first.dtype == np.dtype(getattr(ml_dtypes, dtype, dtype))
    assert np.array_equal(first[0].astype(np.float32), expected([1, 2, 3]))


def test_a_missing_feed_is_an_error_of_ours(tmp_path: Path) -> None:
    session = open_session(counting_pack(tmp_path / "p") / "model.onnx", "model.onnx")
    with pytest.raises(GraphError, match=r"model\.onnx: onnxruntime can't run the graph"):
        session.run({}, ["logits"])


def test_an_unknown_dtype_is_an_error_of_ours(tmp_path: Path) -> None:
    session = open_session(counting_pack(tmp_path / "p") / "model.onnx", "model.onnx")
    with pytest.raises(GraphError, match=r"makes no tensor\(float8e4m3fn\) tensor"):
        session.empty((1, 1, 0, 8), "tensor(float8e4m3fn)")


def test_foreign_operators_name_their_device(tmp_path: Path) -> None:
    path = counting_pack(tmp_path / "p") / "model.onnx"
    model = onnx.load(path)
    model.graph.node[0].domain = "com.ryzenai"
    model.opset_import.add(domain="com.ryzenai", version=1)
    onnx.save(model, path)
    with pytest.raises(GraphError, match="ryzenai") as caught:
        open_session(path, "model.onnx")
    assert caught.value.fix is not None
    assert "NPU" in caught.value.fix


def saved(folder: Path, node: onnx.NodeProto, shapes: dict[str, list[str]]) -> Path:
    """A model of one node, float32 in and out."""
    value = onnx.helper.make_tensor_value_info
    graph = onnx.helper.make_graph(
        [node], "g",
        [value(name, onnx.TensorProto.FLOAT, shape) for name, shape in shapes.items()],
        [value("y", onnx.TensorProto.FLOAT, None)],
    )  # fmt: skip
    opsets = [onnx.helper.make_opsetid("", 21), onnx.helper.make_opsetid("com.microsoft", 1)]
    model = onnx.helper.make_model(graph, opset_imports=opsets, ir_version=10)
    onnx.save(model, folder / "model.onnx")
    return folder / "model.onnx"


def test_a_run_that_fails_names_the_node_and_the_cause(tmp_path: Path) -> None:
    node = onnx.helper.make_node("Add", ["a", "b"], ["y"], "adds")
    path = saved(tmp_path, node, {"a": ["m"], "b": ["n"]})
    session = open_session(path, "model.onnx")
    feeds = {"a": session.value(np.zeros(3, "f")), "b": session.value(np.zeros(4, "f"))}
    with pytest.raises(GraphError) as caught:
        session.run(feeds, ["y"])
    text = str(caught.value)
    assert text.startswith("model.onnx, node adds: onnxruntime can't run the graph: Add fails: ")
    assert "broadcast an axis" in text
    for raw in ("ONNXRuntimeError", "Non-zero status", "/onnxruntime", ".h:", "Status Message"):
        assert raw not in text


@pytest.mark.parametrize(
    ("op", "attributes", "message"),
    [
        ("Relu", {"of_tomorrow": 1}, "does not know the attribute of_tomorrow of Relu. Use the"),
        ("Concat", {}, "model.onnx: onnxruntime .* can't load the graph on the CPU: "),
    ],
)
def test_a_graph_that_is_not_loaded(
    op: str, attributes: dict[str, int], message: str, tmp_path: Path
) -> None:
    node = onnx.helper.make_node(op, ["a"], ["y"], "n", **attributes)
    with pytest.raises(GraphError, match=message) as caught:
        open_session(saved(tmp_path, node, {"a": ["m"]}), "model.onnx")
    assert "Load model from" not in str(caught.value)
    assert str(tmp_path) not in str(caught.value)


def test_an_operator_without_a_kernel_here(tmp_path: Path) -> None:
    node = onnx.helper.make_node("OfTomorrow", ["a"], ["y"], "n", domain="com.microsoft")
    with pytest.raises(GraphError, match=r"has no operator com\.microsoft:OfTomorrow on the CPU"):
        open_session(saved(tmp_path, node, {"a": ["m"]}), "model.onnx")


def test_a_path_that_is_no_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(GraphError, match=r"^p.udcff: the path is not Unicode.* Rename the folder"):
        open_session(Path("p\udcff"), "model.onnx")
