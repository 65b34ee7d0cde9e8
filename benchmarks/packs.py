"""Packs of the size of real ones, whose weights are holes in sparse files."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

CHUNK = 1 << 20
CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}


@dataclass(frozen=True)
class Shape:
    """The dimensions of a decoder with int4 weights in blocks of 32, and its tables."""

    layers: int = 32
    heads: int = 32
    kv_heads: int = 8
    head_dim: int = 128
    hidden: int = 4096
    inner: int = 14336
    vocab: int = 128256
    rows: int = 131072


SHAPES = {
    "8b": Shape(),
    # 600 MB: Llama 3.2 1B with fewer layers and words.
    "small": Shape(
        layers=10, hidden=2048, inner=8192, heads=32, kv_heads=8, head_dim=64, vocab=32000
    ),
    # 1.9 GB.
    "inline": Shape(layers=25, hidden=3072, inner=8192, heads=24, vocab=32000),
}


class Builder:
    """Nodes and external initializers of one graph; `data_size` bytes of data so far."""

    def __init__(self, shape: Shape, location: str) -> None:
        self.shape, self.location = shape, location
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[onnx.TensorProto] = []
        self.data_size = 0
        self.tables: dict[str, int] = {}

    def external(self, name: str, kind: int, dims: list[int], size: int) -> str:
        """An initializer of `size` bytes; its bytes are a hole, unless written later."""
        offset = -(-self.data_size // 4096) * 4096
        tensor = TensorProto(name=name, data_type=kind, dims=dims)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", self.location), ("offset", offset), ("length", size)):
            tensor.external_data.add(key=key, value=str(value))
        self.initializers.append(tensor)
        self.data_size = offset + size
        return name

    def project(self, value: str, name: str, inputs: int, outputs: int) -> str:
        """A MatMulNBits: int4, blocks of 32, float16 scales."""
        blocks = inputs // 32
        quantized = self.external(
            f"{name}.qweight", TensorProto.UINT8, [outputs, blocks, 16], outputs * blocks * 16
        )
        scales = self.external(
            f"{name}.scales", TensorProto.FLOAT16, [outputs * blocks], outputs * blocks * 2
        )
        sizes = {"K": inputs, "N": outputs, "bits": 4, "block_size": 32}
        return self.node("MatMulNBits", [value, quantized, scales], [name], **sizes)

    def node(self, op: str, inputs: list[str], outputs: list[str], **attributes: object) -> str:
        domain = "com.microsoft" if op in ("GroupQueryAttention", "MatMulNBits") else ""
        self.nodes.append(
            helper.make_node(op, inputs, outputs, f"/{outputs[0]}", domain=domain, **attributes)
        )
        return outputs[0]

    def norm(self, value: str, name: str) -> str:
        hidden = self.shape.hidden
        weight = self.external(f"{name}.weight", TensorProto.FLOAT16, [hidden], 2 * hidden)
        return self.node(
            "SimplifiedLayerNormalization", [value, weight], [name], epsilon=1e-5, axis=-1
        )

    def model(self) -> onnx.ModelProto:
        """A decoder as onnxruntime-genai's builder makes it, with the tables amid the weights."""
        shape = self.shape
        embedding = self.external(
            "embedding", TensorProto.FLOAT16, [shape.vocab, shape.hidden],
            2 * shape.vocab * shape.hidden,
        )  # fmt: skip
        self.initializers.append(helper.make_tensor("one", TensorProto.INT64, [1], [1]))
        self.node("ReduceSum", ["attention_mask", "one"], ["mask_sum"], keepdims=0)
        self.node("Sub", ["mask_sum", "one"], ["last"])
        self.node("Cast", ["last"], ["seqlens_k"], to=TensorProto.INT32)
        self.node("Shape", ["attention_mask"], ["mask_shape"])
        self.node("Gather", ["mask_shape", "one"], ["length"], axis=0)
        self.node("Cast", ["length"], ["total_length"], to=TensorProto.INT32)
        pairs = shape.head_dim // 2
        for name in ("cos_cache", "sin_cache"):
            dims = [shape.rows, pairs]
            self.external(name, TensorProto.FLOAT16, dims, 2 * shape.rows * pairs)
            self.tables[name] = self.data_size - 2 * shape.rows * pairs
        value = self.node("Gather", [embedding, "input_ids"], ["embedded"])
        for layer in range(shape.layers):
            value = self.block(layer, value)
        head = self.external(
            "head", TensorProto.FLOAT16, [shape.hidden, shape.vocab],
            2 * shape.hidden * shape.vocab,
        )  # fmt: skip
        self.node("MatMul", [self.norm(value, "norm"), head], ["logits"])
        graph = helper.make_graph(
            self.nodes, "decoder", self.inputs(), self.outputs(), self.initializers
        )
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10)

    def block(self, layer: int, value: str) -> str:
        shape, at = self.shape, f"layer{layer}"
        width, narrow = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        normed = self.norm(value, f"{at}.norm")
        projected = [
            self.project(normed, f"{at}.{name}", shape.hidden, columns)
            for name, columns in (("q", width), ("k", narrow), ("v", narrow))
        ]
        past = [f"past_key_values.{layer}.{name}" for name in ("key", "value")]
        present = [f"present.{layer}.{name}" for name in ("key", "value")]
        attended = self.node(
            "GroupQueryAttention",
            [*projected, *past, "seqlens_k", "total_length", "cos_cache", "sin_cache"],
            [f"{at}.attention", *present],
            num_heads=shape.heads, kv_num_heads=shape.kv_heads, do_rotary=1,
        )  # fmt: skip
        out = self.project(attended, f"{at}.o", width, shape.hidden)
        value = self.node("Add", [value, out], [f"{at}.residual"])
        normed = self.norm(value, f"{at}.mlp_norm")
        gate = self.project(normed, f"{at}.gate", shape.hidden, shape.inner)
        up = self.project(normed, f"{at}.up", shape.hidden, shape.inner)
        active = self.node("Mul", [gate, self.node("Sigmoid", [gate], [f"{at}.s"])], [f"{at}.a"])
        product = self.node("Mul", [active, up], [f"{at}.product"])
        down = self.project(product, f"{at}.down", shape.inner, shape.hidden)
        return self.node("Add", [value, down], [f"{at}.out"])

    def inputs(self) -> list[onnx.ValueInfoProto]:
        fed = [
            helper.make_tensor_value_info(name, TensorProto.INT64, ["b", f"{name}_s"])
            for name in ("input_ids", "attention_mask")
        ]
        return fed + self._cache("past_key_values.{}.{}", "past")

    def outputs(self) -> list[onnx.ValueInfoProto]:
        logits = helper.make_tensor_value_info(
            "logits", TensorProto.FLOAT16, ["b", "s", self.shape.vocab]
        )
        return [logits, *self._cache("present.{}.{}", "total")]

    def _cache(self, name: str, length: str) -> list[onnx.ValueInfoProto]:
        dims = ["b", self.shape.kv_heads, length, self.shape.head_dim]
        return [
            helper.make_tensor_value_info(name.format(layer, part), TensorProto.FLOAT16, dims)
            for layer in range(self.shape.layers)
            for part in ("key", "value")
        ]


def make_pack(folder: Path, shape: Shape, *, filled: bool = False) -> Builder:
    """A pack whose config declares llama3 and whose tables are plain: wrong, as some bake them.

    filled: weights of random bytes, and not holes in a sparse file.
    """
    folder.mkdir()
    builder = Builder(shape, "model.onnx.data")
    (folder / "model.onnx").write_bytes(builder.model().SerializeToString())
    with (folder / "model.onnx.data").open("wb") as file:
        for _ in range(builder.data_size // CHUNK if filled else 0):
            file.write(os.urandom(CHUNK))
        file.truncate(builder.data_size)
        for name, offset in builder.tables.items():
            file.seek(offset)
            file.write(plain_table(name, shape).tobytes())
    write_configs(folder, shape)
    return builder


def make_inline_pack(folder: Path, shape: Shape) -> Builder:
    """The same with every tensor inside model.onnx, whose weights are holes of the file.

    The bytes of protobuf are put together by hand: its fields may come in any order, so
    the graph comes last, and in it the initializers, each with its bytes at its end.
    """
    folder.mkdir()
    builder = Builder(shape, "model.onnx.data")
    model = builder.model()
    tensors = list(model.graph.initializer)
    del model.graph.initializer[:]
    graph = model.graph.SerializeToString()
    model.ClearField("graph")
    pieces = [_inline(tensor) for tensor in tensors]
    length = len(graph) + sum(len(head) + size for head, size, _ in pieces)
    with (folder / "model.onnx").open("wb") as file:
        file.write(model.SerializeToString() + b"\x3a" + varint(length) + graph)
        for head, size, name in pieces:
            file.write(head)
            if name in builder.tables:
                file.write(plain_table(name, shape).tobytes())
            else:
                file.seek(size, os.SEEK_CUR)
        file.truncate()
    write_configs(folder, shape)
    return builder


def _inline(tensor: onnx.TensorProto) -> tuple[bytes, int, str]:
    """All of a GraphProto.initializer field but the bytes of its raw_data, and their count."""
    if tensor.data_location != TensorProto.EXTERNAL:
        body = tensor.SerializeToString()
        return b"\x2a" + varint(len(body)) + body, 0, tensor.name
    size = int({entry.key: entry.value for entry in tensor.external_data}["length"])
    tensor.ClearField("external_data")
    tensor.ClearField("data_location")
    body = tensor.SerializeToString() + b"\x4a" + varint(size)
    return b"\x2a" + varint(len(body) + size) + body, size, tensor.name


def varint(value: int) -> bytes:
    """A number as protobuf writes it."""
    data = bytearray()
    while value >= 0x80:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*data, value])


def plain_table(name: str, shape: Shape) -> np.ndarray:
    """cos or sin of plain RoPE (arXiv:2104.09864) of theta 500000: float16 [rows, pairs]."""
    pairs = shape.head_dim // 2
    frequencies = 1 / 500000.0 ** (np.arange(pairs, dtype=np.float32) / np.float32(pairs))
    angles = np.outer(np.arange(shape.rows, dtype=np.float32), frequencies.astype(np.float32))
    return (np.cos if name.startswith("cos") else np.sin)(angles).astype(np.float16)


def write_configs(folder: Path, shape: Shape) -> None:
    config = {
        **CONFIG,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocab,
        "max_position_embeddings": shape.rows,
    }
    decoder = {
        "filename": "model.onnx",
        "head_size": shape.head_dim,
        "hidden_size": shape.hidden,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
        "inputs": {
            "input_ids": "input_ids",
            "attention_mask": "attention_mask",
            "past_key_names": "past_key_values.%d.key",
            "past_value_names": "past_key_values.%d.value",
        },
        "outputs": {
            "logits": "logits",
            "present_key_names": "present.%d.key",
            "present_value_names": "present.%d.value",
        },
    }
    genai = {
        "model": {
            "type": "llama",
            "context_length": shape.rows,
            "vocab_size": shape.vocab,
            "decoder": decoder,
        },
        "search": {"max_length": shape.rows},
    }
    for name, value in (("config.json", config), ("genai_config.json", genai)):
        (folder / name).write_text(json.dumps(value, indent=2), encoding="utf-8", newline="\n")


def main() -> None:
    """Make a pack: FOLDER, a name of `SHAPES`, and "sparse", "filled" or "inline".

    A process of its own: the memory of the process that starts another one counts in the
    peak of that one. Prints bytes of data, and the offsets of the tables in them.
    """
    folder, shape, kind = Path(sys.argv[1]), SHAPES[sys.argv[2]], sys.argv[3]
    if kind == "inline":
        builder = make_inline_pack(folder, shape)
    else:
        builder = make_pack(folder, shape, filled=kind == "filled")
    print(json.dumps([builder.data_size, *builder.tables.values()]))


if __name__ == "__main__":
    main()
