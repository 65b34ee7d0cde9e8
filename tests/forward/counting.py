"""A pack whose logits are known by a formula: after tokens t0 … ti they are E[t0] + … + E[ti].

The past is kept as keys, one row of the embedding E per token. Values are small integers, exact
in float16 and bfloat16 too. Nothing here comes from forward.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

VOCAB = 8
KINDS = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "int64": TensorProto.INT64,
    "int32": TensorProto.INT32,
}
EMBEDDING = np.random.default_rng(5).integers(-2, 3, (VOCAB, VOCAB)).astype(np.float32)
np.fill_diagonal(EMBEDDING, -6)  # so that greedy text does not repeat one token


def expected(tokens: Any) -> NDArray[np.float32]:
    """[tokens, VOCAB] by the formula."""
    return np.cumsum(EMBEDDING[np.asarray(tokens)], axis=0, dtype=np.float32)


def counting_pack(
    folder: Path,
    *,
    dtype: str = "float32",
    ids: str = "int64",
    position_ids: bool = False,
    last: str = "",
    past: bool = True,
    fixed: bool = False,
    extra: str = "",
    genai: dict[str, Any] | None = None,
    decoder: dict[str, Any] | None = None,
) -> Path:
    """Write the pack; `folder`.

    dtype:        of logits and past.
    ids:          dtype of input_ids and attention_mask.
    position_ids: an input that is added to the logits, so they show what was fed.
    last:         "" a row per token; "static" or "open" the last row alone, by its shape or not.
    past:         whether there is a cache.
    fixed:        the past has a fixed length.
    extra:        the name of one more input.
    genai, decoder: keys added to genai_config's model and its decoder; None removes one.
    """
    nodes, inputs = [], []

    def add(op: str, args: list[str], out: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(op, args, [out], **attributes))
        return out

    def feed(name: str, kind: str, shape: list[Any]) -> str:
        inputs.append(helper.make_tensor_value_info(name, KINDS[kind], shape))
        return name

    feed("input_ids", ids, ["batch", "length"])
    feed("attention_mask", ids, ["batch", "total"])
    rows = add("Gather", ["embedding", "input_ids"], "rows")
    total = add("CumSum", [rows, "one"], "sums")
    # The mask says how many tokens there are in all: 0 is added where that is right.
    add("Cast", ["attention_mask"], "mask", to=TensorProto.FLOAT)
    add("ReduceSum", ["mask"], "masked", keepdims=0)
    seen = add("Cast", [add("Size", ["input_ids"], "size")], "seen", to=TensorProto.FLOAT)
    if past:
        shape = ["batch", 1, 16 if fixed else "past", VOCAB]
        feed("past_key_values.0.key", dtype, shape)
        before = add("Cast", ["past_key_values.0.key"], "before", to=TensorProto.FLOAT)
        total = add("Add", [total, add("ReduceSum", [before, "two"], "carried", keepdims=0)], "all")
        after = add("Concat", [before, add("Unsqueeze", [rows, "one"], "new")], "after", axis=2)
        add("Cast", [after], "present.0.key", to=KINDS[dtype])
        length = add("Gather", [add("Shape", [before], "shape"), "axis"], "past_length")
        old = add("Cast", [length], "old", to=TensorProto.FLOAT)
        seen = add("Add", [seen, old], "known")
    total = add("Add", [total, add("Sub", ["masked", seen], "wrong")], "checked")
    if position_ids:
        feed("position_ids", ids, ["batch", "length"])
        add("Unsqueeze", ["position_ids", "two"], "column")
        total = add(
            "Add", [total, add("Cast", ["column"], "at", to=TensorProto.FLOAT)], "positioned"
        )
    if last:
        total = add("Slice", [total, "minus", "end", "one"], "end_row")
    add("Cast", [total], "logits", to=KINDS[dtype])
    if extra:
        feed(extra, "float32", [1])
    rows_out = {"": "length", "open": "some", "static": 1}[last]
    outputs = [
        helper.make_tensor_value_info("logits", KINDS[dtype], ["batch", rows_out, VOCAB]),
        helper.make_tensor_value_info("present.0.key", KINDS[dtype], ["batch", 1, "t", VOCAB]),
    ]
    constants = {
        "embedding": EMBEDDING,
        "one": np.array([1]),
        "two": np.array([2]),
        "minus": np.array([-1]),
        "end": np.array([2**31]),
        "axis": np.array(2),
    }
    tensors = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(nodes, "counting", inputs, outputs[: 1 + past], tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    folder.mkdir()
    onnx.save(model, folder / "model.onnx")
    text = json.dumps({"model": _config(genai or {}, decoder or {})}, indent=1)
    (folder / "genai_config.json").write_text(text, encoding="utf-8", newline="\n")
    return folder


def _config(genai: dict[str, Any], decoder: dict[str, Any]) -> dict[str, Any]:
    inner = {
        "filename": "model.onnx",
        "head_size": VOCAB,
        "num_hidden_layers": 1,
        "num_key_value_heads": 1,
        **decoder,
    }
    outer = {
        "type": "llama",
        "context_length": 64,
        "vocab_size": VOCAB,
        "eos_token_id": 7,
        "decoder": {key: value for key, value in inner.items() if value is not None},
        **genai,
    }
    return {key: value for key, value in outer.items() if value is not None}
