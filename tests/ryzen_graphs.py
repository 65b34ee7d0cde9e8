"""Graphs as Ryzen AI's NPU passes make them, for tests. No device and no such op is here to run.

From the facts of public packs and of AMD's pass sources: which inputs of which op are what,
names of nodes and outputs, casts, and weights that are offloaded and left with dims [0]:

- GQO is attention with its output projection: outputs present key, present value, result.
  17 inputs: q or packed qkv, k, v, past key, past value, seqlens_k, total length, cos, sin,
  position ids, attention bias, head sink, then weights, scales, zeros, bias and packed weights
  of the projection. 10 inputs: packed qkv, past key, past value, seqlens_k, total length, cos,
  sin, weights, scales, zeros; the bias is the 11th.
- AMDGroupQueryAttention (com.amd) has the 9 inputs of GroupQueryAttention.
- The two branches of a combined graph have outputs of the same names as the `If`.

Nothing here comes from packimport.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

Tables = tuple[NDArray[Any], NDArray[Any]]
BF16 = np.dtype(ml_dtypes.bfloat16)
DTYPES = {
    "float32": (TensorProto.FLOAT, np.dtype(np.float32)),
    "float16": (TensorProto.FLOAT16, np.dtype(np.float16)),
    "bfloat16": (TensorProto.BFLOAT16, BF16),
}
MASK = "/model/attn_mask_reformat/attn_mask_subgraph"
BLOCK = 32


@dataclass(frozen=True, kw_only=True)
class Shape:
    """The dimensions of a decoder."""

    layers: int = 3
    heads: int = 4
    kv_heads: int = 2
    head_size: int = 64
    hidden: int = 128
    vocab: int = 96


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a graph looks like; see `ryzen_packs.build`."""

    tables: Tables | Callable[[int], Tables]
    token_tables: Tables | None = None
    shape: Shape = field(default_factory=Shape)
    domain: str = "com.ryzenai"
    op: str = "GQO"
    inputs: int = 17
    packed: bool = True
    dtype: str = "float16"
    cache: str = "float16"
    table_dtype: str = "float16"
    interleaved: bool = False
    rotary_dim: int | None = None
    place: str = "branch"
    token_place: str = "constant"
    prefill_place: str = "constant"
    sparse: bool = False


class DataFile:
    """External data: tensors one after the other, without a gap."""

    def __init__(self, name: str) -> None:
        self.name, self.size = name, 0
        self._chunks: list[tuple[int, bytes]] = []

    def add(self, name: str, kind: int, dims: list[int], data: bytes | int) -> TensorProto:
        """A tensor of these bytes; of a number of zero bytes, which stay a hole of the file."""
        length = data if isinstance(data, int) else len(data)
        tensor = TensorProto(name=name, data_type=kind, dims=dims)
        tensor.data_location = TensorProto.EXTERNAL
        places = (("location", self.name), ("offset", self.size), ("length", length))
        for key, value in places:
            tensor.external_data.add(key=key, value=str(value))
        if not isinstance(data, int):
            self._chunks.append((self.size, data))
        self.size += length
        return tensor

    def write(self, folder: Path) -> None:
        with (folder / self.name).open("wb") as file:
            for offset, data in self._chunks:
                file.seek(offset)
                file.write(data)
            file.truncate(self.size)


class Body:
    """Nodes and initializers of one graph, or of one branch."""

    def __init__(self, options: Options, data: DataFile) -> None:
        self.options, self.data = options, data
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[TensorProto] = []
        self._rng = np.random.default_rng(7)

    def node(
        self, op: str, name: str, inputs: list[str], outputs: list[str], **attributes: Any
    ) -> str:
        """A node of ONNX, or of AMD's domain where ONNX has no such op; its first output."""
        standard = onnx.defs.has(op) or op == "SimplifiedLayerNormalization"
        domain = "" if standard else self.options.domain
        self.nodes.append(helper.make_node(op, inputs, outputs, name, domain=domain, **attributes))
        return outputs[0]

    def step(self, op: str, name: str, inputs: list[str], **attributes: Any) -> str:
        """A node with one output, named after it."""
        return self.node(op, name, inputs, [f"{name}/output_0"], **attributes)

    def integers(self, name: str, values: list[int] | int) -> str:
        array = np.asarray(values, np.int64)
        self.initializers.append(helper.make_tensor(name, TensorProto.INT64, array.shape, array))
        return name

    def offloaded(self, name: str, kind: int = TensorProto.UINT8) -> str:
        """A weight that lies in a `.bin` file: dims [0] and no bytes."""
        self.initializers.append(helper.make_tensor(name, kind, [0], b"", raw=True))
        return name

    def weight(self, name: str, *dims: int) -> str:
        kind, dtype = DTYPES[self.options.dtype]
        count = int(np.prod(dims))
        data: bytes | int = count * dtype.itemsize
        if not self.options.sparse:
            data = self._rng.standard_normal(count).astype(dtype).tobytes()
        self.initializers.append(self.data.add(name, kind, list(dims), data))
        return name

    def projection(self, name: str) -> list[str]:
        """The offloaded weights, scales, zeros and bias of a MatMulNBits."""
        kinds = {"qweight": TensorProto.UINT8, "scales": TensorProto.FLOAT}
        kinds |= {"qzeros": TensorProto.UINT8, "bias": TensorProto.FLOAT}
        return [self.offloaded(f"{name}.{part}", kind) for part, kind in kinds.items()]

    def project(self, value: str, path: str, rows: int, columns: int) -> str:
        """A MatMulNBits, e.g. `/model/layers.0/attn/qkv_proj/MatMulNBits`."""
        weights = self.projection(path.strip("/").replace("/", ".") + ".MatMulNBits")
        return self.step(
            "MatMulNBits", f"{path}/MatMulNBits", [value, *weights[:3], "", weights[3]],
            K=rows, N=columns, bits=4, block_size=BLOCK, accuracy_level=0,
        )  # fmt: skip

    def cast(self, value: str, name: str, to: int) -> str:
        return self.step("CastAvx", name, [value], to=to)

    def lengths(self) -> tuple[str, str]:
        """seqlens_k and total_sequence_length, as the builder of onnxruntime-genai makes them."""
        one = self.integers(f"{MASK}/one", [1])
        total = self.step("ReduceSum", f"{MASK}/ReduceSum", ["attention_mask", one], keepdims=1)
        last = self.step("Sub", f"{MASK}/Sub", [total, one])
        seqlens = self.step("Cast", f"{MASK}/Sub/Cast", [last], to=TensorProto.INT32)
        shape = self.step("Shape", f"{MASK}/Shape", ["attention_mask"])
        index = self.integers(f"{MASK}/index", 1)
        length = self.step("Gather", f"{MASK}/Gather", [shape, index], axis=0)
        length = self.step("Cast", f"{MASK}/Gather/Cast", [length], to=TensorProto.INT32)
        return seqlens, length

    def embedded(self) -> str:
        name = "/model/embed_tokens/Gather"
        return self.step("Gather", name, ["model.embed_tokens.weight", "input_ids"], axis=0)

    def constant(self, node: str, output: str, tensor: TensorProto) -> str:
        return self.node("Constant", node, [], [output], value=tensor)

    def logits(self, value: str) -> None:
        """The logits of the last token alone."""
        last = self.integers("/lm_head/last", -1)
        row = self.step("Gather", "/lm_head/Gather", [value, last], axis=1)
        axis = self.integers("/lm_head/axis", [1])
        row = self.step("Unsqueeze", "/lm_head/Unsqueeze", [row, axis])
        shape = self.options.shape
        head = self.project(row, "/lm_head", shape.hidden, shape.vocab)
        self.node("CastAvx", "/lm_head/CastAvx", [head], ["logits"], to=TensorProto.FLOAT)

    def caches(self, pattern: str) -> list[str]:
        layers = range(self.options.shape.layers)
        return [pattern % (layer, part) for layer in layers for part in ("key", "value")]


class Tabled:
    """The cos and sin tensors of GQO nodes: one pair for each distinct pair of tables."""

    def __init__(self, body: Body, outer: Body) -> None:
        self.body, self.outer = body, outer
        self._made: dict[tuple[int, int], tuple[str, str]] = {}

    def of(self, layer: int) -> tuple[str, str]:
        given = self.body.options.tables
        cos, sin = given(layer) if callable(given) else given
        key = (id(cos), id(sin))
        if key not in self._made:
            tail = f"_{len(self._made)}" if self._made else ""
            self._made[key] = self._add(f"cos_cache{tail}", cos), self._add(f"sin_cache{tail}", sin)
        return self._made[key]

    def _add(self, name: str, table: NDArray[Any]) -> str:
        options = self.body.options
        kind, dtype = DTYPES[options.table_dtype]
        stored, dims = table.astype(dtype), list(table.shape)
        if options.place == "offloaded":
            return self.body.offloaded(name, kind)
        if options.place == "constant":
            raw = helper.make_tensor(name, kind, dims, stored.tobytes(), raw=True)
            return self.body.constant(name, name, raw)
        home = self.outer if options.place == "main" else self.body
        home.initializers.append(self.body.data.add(name, kind, dims, stored.tobytes()))
        return name


def attention(body: Body, layer: int, value: str, tables: Tabled, lengths: tuple[str, str]) -> str:
    """A layer's attention, its projections included; the name of its result."""
    options, shape = body.options, body.options.shape
    at = f"/model/layers.{layer}/attn"
    query, narrow = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    if options.packed or options.inputs < 17:
        taken = [body.project(value, f"{at}/qkv_proj", shape.hidden, query + 2 * narrow)]
    else:
        sizes = {"q": query, "k": narrow, "v": narrow}
        taken = [body.project(value, f"{at}/{x}_proj", shape.hidden, n) for x, n in sizes.items()]
    taken = [
        body.cast(q, f"{at}/CastAvx_{i}.hybrid_llm_0", TensorProto.BFLOAT16)
        for i, q in enumerate(taken)
    ]
    past = [f"past_key_values.{layer}.{part}" for part in ("key", "value")]
    present = [f"present.{layer}.{part}" for part in ("key", "value")]
    attributes: dict[str, Any] = {
        "do_rotary": 1,
        "rotary_interleaved": int(options.interleaved),
        "num_heads": shape.heads,
        "kv_num_heads": shape.kv_heads,
        "scale": shape.head_size**-0.5,
        "local_window_size": -1,
        "softcap": 0.0,
    }
    if options.rotary_dim is not None:
        attributes["rotary_embedding_dim"] = options.rotary_dim
    common = [*past, *lengths, *tables.of(layer)]
    if options.op != "GQO":
        inputs = [*(taken if len(taken) == 3 else [taken[0], "", ""]), *common]
        result = body.node(
            options.op, f"{at}/{options.op}", inputs, [f"{at}/output_0", *present], **attributes
        )
        return body.project(result, f"{at}/o_proj", query, shape.hidden)
    attributes |= {
        "head_size": shape.head_size,
        "o_proj_K": query,
        "o_proj_N": shape.hidden,
        "o_proj_bits": 4,
        "o_proj_block_size": BLOCK,
        "o_proj_accuracy_level": 0,
    }
    name = f"{at}/GQO" if options.inputs == 17 else f"gqo_2_{layer}"
    stem = f"model.layers.{layer}.attn.o_proj.MatMulNBits"
    weights = body.projection(stem)
    if options.inputs == 17:
        heads = taken if len(taken) == 3 else [taken[0], "", ""]
        packed = body.offloaded(f"{stem}.packed")
        inputs = [*heads, *common, "", "", "", *weights, packed]
    else:
        inputs = [taken[0], *common, *weights[: options.inputs - 7]]
    assert len(inputs) == options.inputs
    result = f"{at}/o_proj/MatMulNBits/output_0"
    body.node("GQO", name, inputs, [*present, f"{result}.bf16"], **attributes)
    return body.node(
        "CastAvx", f"{name}.hybrid_llm_1", [f"{result}.bf16"], [result],
        to=DTYPES[options.dtype][0],
    )  # fmt: skip


def decoder(body: Body, outer: Body) -> None:
    """Layers of GQO and SSMLP (residual, norm and MLP in one), and the last token's logits."""
    shape = body.options.shape
    lengths = body.lengths()
    tables = Tabled(body, outer)
    residual = body.embedded()
    first = "model.layers.0.input_layernorm.weight"
    value = body.step(
        "SimplifiedLayerNormalization", "/model/layers.0/input_layernorm/LayerNorm",
        [residual, body.weight(first, shape.hidden)], axis=-1, epsilon=1e-5, stash_type=1,
    )  # fmt: skip
    for layer in range(shape.layers):
        attended = attention(body, layer, value, tables, lengths)
        at = f"model.layers.{layer}"
        norm = body.weight(f"{at}.post_attention_layernorm.weight", shape.hidden)
        weights = [
            name
            for part in ("gate", "up", "down")
            for name in body.projection(f"{at}.mlp.{part}_proj.MatMulNBits")[:3]
        ]
        last = layer + 1 == shape.layers
        following = "model.norm" if last else f"model.layers.{layer + 1}.input_layernorm"
        after = body.weight(f"{following}.weight", shape.hidden)
        outputs = [f"/model/layers.{layer}/mlp/output_{i}" for i in (0, 1)]
        value = body.node(
            "SSMLP", f"ssmlp_3_{layer}", [attended, residual, norm, *weights, after], outputs
        )
        residual = outputs[1]
    body.logits(value)


def token_table(options: Options) -> NDArray[Any]:
    """bf16 [rows, 2 * pairs], cos then sin, of the values that the prefill table stores."""
    given = options.token_tables
    if given is None:
        given = options.tables(0) if callable(options.tables) else options.tables
    dtype = DTYPES[options.table_dtype][1]
    return np.concatenate([part.astype(dtype) for part in given], axis=1).astype(BF16)


def prefill_table(options: Options) -> NDArray[Any]:
    """bf16 [2, rows, 4 * pairs]: cos, then sin; a row is hi, hi, lo, lo."""
    given = options.tables(0) if callable(options.tables) else options.tables
    made = []
    for part in given:
        wide = part.astype(DTYPES[options.table_dtype][1]).astype(np.float32)
        high = wide.astype(BF16)
        low = (wide - high.astype(np.float32)).astype(BF16)
        made.append(np.concatenate([high, high, low, low], axis=1))
    return np.stack(made)


def fused(body: Body, name: str, extra: list[str]) -> str:
    """A DynamicDispatch node: all layers, compiled; it takes and gives the caches."""
    value = body.cast(body.embedded(), f"{name}/CastAvx", TensorProto.BFLOAT16)
    inputs = [value, *body.caches("past_key_values.%d.%s"), *extra]
    outputs = [f"{name}/hidden", *body.caches("present.%d.%s")]
    return body.node("DynamicDispatch", name, inputs, outputs)


def mask(body: Body) -> str:
    """The count of tokens, as the fused token graph takes it."""
    one = body.integers(f"{MASK}/one", [1])
    total = body.step("ReduceSum", f"{MASK}/ReduceSum", ["attention_mask", one], keepdims=1)
    body.node("Constant", "attn_mask_node", [], ["attention_mask_const"], value_ints=[1])
    cast = ["attention_mask_casted"]
    body.node("Cast", "attn_cast", [total], cast, to=TensorProto.UINT32)
    return body.node(
        "Reshape", "attn_mask_reshape", [*cast, "attention_mask_const"],
        ["attention_mask_const_uint"],
    )  # fmt: skip


def _table(body: Body, name: str, values: NDArray[Any], place: str) -> str:
    tensor = helper.make_tensor(
        name, TensorProto.BFLOAT16, values.shape, values.tobytes(), raw=True
    )
    if place == "constant":
        return body.constant("sin_cos_cache", name, tensor)
    if place == "external":
        data = values.tobytes()
        tensor = body.data.add(name, TensorProto.BFLOAT16, list(values.shape), data)
    body.initializers.append(tensor)
    return name


def token_graph(body: Body) -> None:
    options = body.options
    counted = mask(body)
    table = _table(body, "sin_cos_cache_token", token_table(options), options.token_place)
    body.logits(fused(body, "MatMulNBits_2_0", [counted, table]))


def fused_prefill(body: Body) -> None:
    """The prefill graph of full fusion: the rows in use of the table, then one fused node."""
    options = body.options
    table = _table(body, "sin_cos_cache_prefill", prefill_table(options), options.prefill_place)
    pads = body.integers("input_ids_pads", [0, 0, 0, 0])
    body.node("Pad", "input_ids_pad", ["input_ids", pads], ["input_ids_padded"])
    shape = "input_ids_padded_shape"
    body.node("Shape", "", ["input_ids_padded"], [shape], start=1)
    for value in (0, 1):
        body.node("Constant", f"const_{value}", [], [f"const_{value}"], value_ints=[value])
    cut = body.node(
        "Slice", "sin_cos_cache_slice", [table, "const_0", shape, "const_1", "const_1"],
        ["sin_cos_cache_prefill_slice"],
    )  # fmt: skip
    body.logits(fused(body, "MatMulNBits_1_0", [cut]))


def combined(options: Options, data: DataFile, prefill: Callable[[Body, Body], None]) -> Body:
    """Shape -> Equal -> If(then = the graph for one token, else = the prefill graph)."""
    main = Body(options, data)
    embedding(main)
    then, otherwise = Body(options, data), Body(options, data)
    token_graph(then)
    prefill(otherwise, main)
    length = main.step("Shape", "/Shape", ["input_ids"], start=1, end=2)
    single = main.step("Equal", "/Equal", [length, main.integers("/one_token", [1])])
    outputs = list(_outputs(options))
    branches = {
        "then_branch": helper.make_graph(then.nodes, "token", [], outputs, then.initializers),
        "else_branch": helper.make_graph(
            otherwise.nodes, "prefill", [], outputs, otherwise.initializers
        ),
    }
    main.node("If", "/If", [single], [value.name for value in outputs], **branches)
    return main


def single(options: Options, data: DataFile) -> Body:
    """One graph for prefill and decode."""
    main = Body(options, data)
    embedding(main)
    decoder(main, main)
    return main


def embedding(body: Body) -> None:
    shape = body.options.shape
    body.weight("model.embed_tokens.weight", shape.vocab, shape.hidden)


def model(body: Body) -> onnx.ModelProto:
    options = body.options
    graph = helper.make_graph(
        body.nodes, "main_graph", list(_inputs(options)), list(_outputs(options)),
        body.initializers,
    )  # fmt: skip
    opsets = [helper.make_opsetid(name, v) for name, v in (("", 21), (options.domain, 1))]
    return helper.make_model(
        graph, opset_imports=opsets, ir_version=10, producer_name="onnxruntime-genai"
    )


def _inputs(options: Options) -> Iterator[onnx.ValueInfoProto]:
    for name in ("input_ids", "attention_mask", "position_ids"):
        yield helper.make_tensor_value_info(name, TensorProto.INT64, ["batch_size", f"{name}_s"])
    yield from _caches(options, "past_key_values.%d.%s", "past_sequence_length")


def _outputs(options: Options) -> Iterator[onnx.ValueInfoProto]:
    dims = [1, 1, options.shape.vocab]
    yield helper.make_tensor_value_info("logits", TensorProto.FLOAT, dims)
    yield from _caches(options, "present.%d.%s", "total_sequence_length")


def _caches(options: Options, name: str, length: str) -> Iterator[onnx.ValueInfoProto]:
    shape = options.shape
    dims = ["batch_size", shape.kv_heads, length, shape.head_size]
    kind = DTYPES[options.cache][0]
    for layer in range(shape.layers):
        for part in ("key", "value"):
            yield helper.make_tensor_value_info(name % (layer, part), kind, dims)
