"""model.onnx: the script makes it, its spans fit the data file, onnxruntime runs it."""

from __future__ import annotations

import itertools
import runpy
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from packimport.demo import model, pack
from packimport.demo.reference import load_reference

MAKER = Path(__file__).with_name("make_demo_graph.py")
STORED = Path(pack.__file__).with_name(pack.GRAPH)


def test_the_script_makes_the_stored_graph() -> None:
    made = runpy.run_path(str(MAKER))["demo_graph"]()
    stored = onnx.load_model_from_string(STORED.read_bytes())
    assert onnx.printer.to_text(made) == onnx.printer.to_text(stored)
    assert made == stored


def test_initializers_tile_the_data_file(tmp_path: Path) -> None:
    pack.write_pack(tmp_path / "pack")
    size = (tmp_path / "pack" / pack.DATA).stat().st_size
    spans = []
    for tensor in onnx.load_model_from_string(STORED.read_bytes()).graph.initializer:
        entries = {entry.key: entry.value for entry in tensor.external_data}
        assert entries["location"] == pack.DATA
        spans.append((int(entries["offset"]), int(entries["length"])))
    ends = [offset + length for offset, length in spans]
    assert [offset for offset, _ in spans] == [0, *ends[:-1]]
    assert ends[-1] == size


@pytest.mark.parametrize("prefill", [512, 384])
def test_the_graph_is_the_model_of_the_reference(tmp_path: Path, prefill: int) -> None:
    """With transformers 5.24.0's frequencies in the table, the pack gives its logits.

    Written by hand here, so that the demo's proof rests on the graph and the patch alone;
    the second case feeds the last 128 tokens one by one through the KV cache.
    """
    reference = load_reference()
    folder = tmp_path / "pack"
    pack.write_pack(folder)
    assert np.abs(run(folder, prefill) - reference.logits).max() > 1.0

    positions = np.arange(model.MAX_POSITIONS, dtype=np.float32)
    angles = np.outer(positions, reference.inv_freq).astype(np.float64)
    constants = dict(pack.tensors())
    constants["cos_cache"] = np.cos(angles).astype(np.float32)
    constants["sin_cache"] = np.sin(angles).astype(np.float32)
    (folder / pack.DATA).write_bytes(b"".join(value.tobytes() for value in constants.values()))
    assert np.abs(run(folder, prefill) - reference.logits).max() < 2e-5


def run(folder: Path, prefill: int) -> np.ndarray:
    session = onnxruntime.InferenceSession(
        str(folder / pack.GRAPH), providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    empty = np.zeros((1, model.KV_HEADS, 0, model.HEAD_DIM), np.float32)
    cache = {
        f"past_key_values.{layer}.{part}": empty
        for layer in range(model.LAYERS)
        for part in ("key", "value")
    }
    tokens = model.tokens()[None]
    rows = []
    edges = [0, prefill, *range(prefill + 1, model.TOKENS + 1)]
    for start, stop in itertools.pairwise(edges):
        feeds = {
            "input_ids": tokens[:, start:stop],
            "attention_mask": np.ones((1, stop), np.int64),
            **cache,
        }
        outputs = dict(zip(names, session.run(None, feeds), strict=True))
        rows.append(outputs["logits"][0])
        cache = {name: outputs[name.replace("past_key_values", "present")] for name in cache}
    return np.concatenate(rows)
