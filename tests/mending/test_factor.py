"""A missing attention factor is multiplied in, behind the Cos and the Sin of a graph.

The pack is that of optimum-onnx 0.1.0 in tests/packs. The reference is the same pack with
the right numbers in its own constants, set by onnx; run by onnxruntime 1.32.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from mending.mended import mend, run
from numpy.typing import NDArray
from onnx import numpy_helper

from packimport import check, patch
from packimport.errors import PatchError

PACK = Path(__file__).parent.parent / "packs" / "optimum-0.1.0-llama3"
TOKENS = np.random.default_rng(5).integers(0, 512, 200)
FACTOR = 1.25
# With the factor 1, yarn has the plain frequencies; the attention factor is as given.
YARN = {
    "rope_type": "yarn",
    "factor": 1.0,
    "attention_factor": FACTOR,
    "original_max_position_embeddings": 256,
}
Change = Callable[[onnx.ModelProto], None]


def pack_of(folder: Path, *changes: Change) -> Path:
    """The pack with another declaration, its graph changed."""
    pack = shutil.copytree(PACK, folder)
    config = json.loads((pack / "config.json").read_text(encoding="utf-8"))
    config["rope_scaling"] = YARN
    (pack / "config.json").write_text(json.dumps(config), encoding="utf-8", newline="\n")
    model = onnx.load(pack / "model.onnx")
    for change in changes:
        change(model)
    (pack / "model.onnx").write_bytes(model.SerializeToString())
    return pack


def named(model: onnx.ModelProto, name: str) -> onnx.NodeProto:
    return next(node for node in model.graph.node if node.output[0] == name)


def set_constant(name: str, values: NDArray[np.float32] | np.float32) -> Change:
    def change(model: onnx.ModelProto) -> None:
        tensor = named(model, name).attribute[0].t
        shaped = np.asarray(values, np.float32).reshape(tuple(tensor.dims))
        tensor.CopyFrom(numpy_helper.from_array(shaped, tensor.name))

    return change


plain_frequencies = set_constant(
    "onnx::Expand_119", np.float32(1) / np.float32(500000) ** (np.arange(8, dtype=np.float32) / 8)
)


def no_factor(model: onnx.ModelProto) -> None:
    """onnxruntime's optimizer takes a product with 1 out of a graph."""
    for op, number in (("Cos", 1), ("Sin", 2)):
        product = named(model, f"/model/rotary_emb/Mul_{number}_output_0")
        taker = named(model, f"/model/rotary_emb/Cast_{number + 3}_output_0")
        taker.input[0] = f"/model/rotary_emb/{op}_output_0"
        model.graph.node.remove(product)


def one_constant(model: onnx.ModelProto) -> None:
    """Both products, and one more node, take one constant 1."""
    shared = "/model/rotary_emb/Constant_7_output_0"
    named(model, "/model/rotary_emb/Mul_2_output_0").input[1] = shared
    model.graph.node.append(onnx.helper.make_node("Mul", [shared, shared], ["unused"], "/other"))


@pytest.fixture
def right(tmp_path: Path) -> Path:
    constants = [f"/model/rotary_emb/Constant_{n}_output_0" for n in (7, 8)]
    factors = [set_constant(name, np.float32(FACTOR)) for name in constants]
    pack = pack_of(tmp_path / "right", plain_frequencies, *factors)
    assert check(pack).verdict == "ok"
    return pack


@pytest.mark.parametrize("change", [no_factor, one_constant])
@pytest.mark.parametrize("frequencies", ["right", "wrong"])
def test_a_missing_factor(tmp_path: Path, right: Path, change: Change, frequencies: str) -> None:
    changes = [change, plain_frequencies] if frequencies == "right" else [change]
    pack = pack_of(tmp_path / "p", *changes)
    assert "RPE024" in {f.code for f in check(pack).findings}
    assert np.abs(run(pack, TOKENS) - run(right, TOKENS)).max() > 1e-3
    patched = mend(pack, tmp_path / "out")
    multiplied = [r for r in patched.graph_changes if "is multiplied by 1.25" in r.change]
    assert [r.where.rsplit("/", 1)[1] for r in multiplied] == ["Cos", "Sin"]
    assert all("RPE024" in record.reason for record in multiplied)
    rewritten = [r for r in patched.graph_changes if "are rewritten" in r.change]
    assert len(rewritten) == (frequencies == "wrong")
    assert np.abs(run(tmp_path / "out", TOKENS, 3) - run(right, TOKENS, 3)).max() < 1e-5


def test_bytes_only_refuses(tmp_path: Path) -> None:
    pack = pack_of(tmp_path / "p", no_factor, plain_frequencies)
    with pytest.raises(PatchError, match=r"RPE024.*leave --bytes-only out"):
        patch(pack, tmp_path / "out", bytes_only=True)


def test_a_factor_that_is_handed_out_of_the_graph_is_refused(tmp_path: Path) -> None:
    def hand_out(model: onnx.ModelProto) -> None:
        info = onnx.helper.make_tensor_value_info(
            "/model/rotary_emb/Cos_output_0", onnx.TensorProto.FLOAT, None
        )
        model.graph.output.append(info)

    pack = pack_of(tmp_path / "p", no_factor, plain_frequencies, hand_out)
    with pytest.raises(PatchError, match="an output of the graph"):
        patch(pack, tmp_path / "out")
