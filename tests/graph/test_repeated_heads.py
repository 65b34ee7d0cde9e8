"""Keys whose heads are repeated between their rotation and the attention."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from builders import tiny_pack
from numpy.typing import NDArray
from onnx import helper

from packimport import check

PARTIAL = {"model_type": "phi", "partial_rotary_factor": 0.5}


def repeat(model: onnx.ModelProto, heads: int = 2) -> None:
    """MultiHeadAttention in the place of GroupQueryAttention, and k and v repeated for it, as
    onnxruntime-genai's builder does where a provider has no GroupQueryAttention.

    heads: into how many the key is said to be split.
    """
    graph = model.graph
    shapes = {
        "split": [0, 0, heads, -1],
        "split_v": [0, 0, 2, -1],
        "three": [3],
        "twice": [1, 1, 1, 4 // heads, 1],
        "twice_v": [1, 1, 1, 2, 1],
        "merged": [0, 0, 64],
    }
    for name, values in shapes.items():
        graph.initializer.append(helper.make_tensor(name, 7, [len(values)], values))
    for node in [n for n in graph.node if n.op_type == "GroupQueryAttention"]:
        at = list(graph.node).index(node)
        made = []
        for side, name in (("", node.input[1]), ("_v", node.input[2])):
            steps = [("Reshape", f"split{side}"), ("Unsqueeze", "three")]
            steps += [("Expand", f"twice{side}"), ("Reshape", "merged")]
            value = name
            for count, (op, shape) in enumerate(steps):
                out = f"{name}.repeated{count}"
                made.append(helper.make_node(op, [value, shape], [out], out))
                value = out
            node.input[1 if side == "" else 2] = value
        attention = helper.make_node(
            "MultiHeadAttention", list(node.input[:3]), [node.output[0]], node.name,
            domain="com.microsoft", num_heads=4, unidirectional=1,
        )  # fmt: skip
        graph.node.remove(node)
        for offset, new in enumerate([*made, attention]):
            graph.node.insert(at + offset, new)
    for kept in (graph.input, graph.output):
        for value in [v for v in kept if "past" in v.name or "present" in v.name]:
            kept.remove(value)


def logits(pack: Path) -> NDArray[np.float32]:
    session = onnxruntime.InferenceSession(pack / "model.onnx")
    tokens = np.arange(20)[None]
    feeds = {"input_ids": tokens, "attention_mask": np.ones((1, 20), np.int64)}
    feeds["position_ids"] = tokens
    for value in session.get_inputs():
        if value.name.startswith("past"):
            feeds[value.name] = np.zeros((1, 2, 0, 16), np.float32)
    result: NDArray[np.float32] = session.run(["logits"], feeds)[0]
    return result


def made(folder: Path, heads: int = 2, key_heads: int = 2, *, grouped: bool = False) -> Path:
    def change(model: onnx.ModelProto) -> None:
        if not grouped:
            repeat(model, heads)
        for node in model.graph.node:
            if node.op_type == "RotaryEmbedding" and "k_rotary" in node.name:
                (stated,) = [a for a in node.attribute if a.name == "num_heads"]
                stated.i = key_heads

    return tiny_pack(folder, form="rotary_embedding", rotary_dim=8, config=PARTIAL, change=change)


def test_keys_that_are_repeated_have_the_heads_of_their_node(tmp_path: Path) -> None:
    pack, grouped = made(tmp_path / "p"), made(tmp_path / "grouped", grouped=True)
    assert np.abs(logits(pack) - logits(grouped)).max() < 1e-5
    report = check(pack)
    assert report.verdict == "ok", report.text()
    assert check(grouped).verdict == "ok"


@pytest.mark.parametrize(("heads", "key_heads"), [(2, 1), (2, 4), (1, 2), (4, 2)])
def test_other_heads_than_those_that_are_repeated(
    heads: int, key_heads: int, tmp_path: Path
) -> None:
    """The node cuts the key into other heads than what is repeated has."""
    report = check(made(tmp_path / "p", heads, key_heads))
    assert report.verdict == "unsupported", report.text()
    assert any(f"has num_heads = {key_heads}" in f.message for f in report.findings)
