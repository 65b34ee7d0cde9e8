"""Makes packimport/demo/model.onnx: the demo's graph, without a value in it.

    python tests/demo/make_demo_graph.py packimport/demo/model.onnx

The nodes and names are those of onnxruntime-genai's model builder (0.18.0) for a
Llama in float32 for the CPU. It lives with the tests because one module of
packimport alone may import onnx.
"""

from __future__ import annotations

import sys
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from packimport.demo import model, pack

INT32, INT64, FLOAT = TensorProto.INT32, TensorProto.INT64, TensorProto.FLOAT
CONTRIB = "com.microsoft"
MASK = "/model/attn_mask_reformat/attn_mask_subgraph"


def demo_graph() -> onnx.ModelProto:
    """The whole model: opset 21, every initializer external."""
    nodes = [*mask_nodes(), *decoder_nodes()]
    graph = helper.make_graph(nodes, "main_graph", inputs(), outputs(), initializers())
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(CONTRIB, 1)]
    return helper.make_model(
        graph, opset_imports=opsets, ir_version=10, producer_name="packimport demo"
    )


def inputs() -> list[onnx.ValueInfoProto]:
    batch = "batch_size"
    past = [batch, model.KV_HEADS, "past_sequence_length", model.HEAD_DIM]
    cache = [
        helper.make_tensor_value_info(f"past_key_values.{layer}.{part}", FLOAT, past)
        for layer in range(model.LAYERS)
        for part in ("key", "value")
    ]
    return [
        helper.make_tensor_value_info("input_ids", INT64, [batch, "sequence_length"]),
        helper.make_tensor_value_info("attention_mask", INT64, [batch, "total_sequence_length"]),
        *cache,
    ]


def outputs() -> list[onnx.ValueInfoProto]:
    batch = "batch_size"
    present = [batch, model.KV_HEADS, "total_sequence_length", model.HEAD_DIM]
    cache = [
        helper.make_tensor_value_info(f"present.{layer}.{part}", FLOAT, present)
        for layer in range(model.LAYERS)
        for part in ("key", "value")
    ]
    logits = [batch, "sequence_length", model.VOCAB]
    return [helper.make_tensor_value_info("logits", FLOAT, logits), *cache]


def initializers() -> list[TensorProto]:
    """References into the data file, in its order and without gaps."""
    references, offset = [], 0
    for name, value in pack.tensors().items():
        tensor = TensorProto(name=name, data_type=FLOAT, dims=value.shape)
        tensor.data_location = TensorProto.EXTERNAL
        length = 4 * value.size
        for key, entry in (("location", pack.DATA), ("offset", offset), ("length", length)):
            tensor.external_data.add(key=key, value=str(entry))
        references.append(tensor)
        offset += length
    return references


def mask_nodes() -> list[onnx.NodeProto]:
    """seqlens_k and total_sequence_length of the attention, from the attention mask."""
    axis = helper.make_tensor("value", INT64, [1], [1])
    one = helper.make_tensor("value", INT64, [], [1])
    constants = "/model/constants/INT64"

    def node(op: str, name: str, sources: list[str], **attributes: int) -> onnx.NodeProto:
        path = f"{MASK}/{name}"
        return helper.make_node(op, sources, [f"{path}/output_0"], path, **attributes)

    return [
        helper.make_node(
            "Constant", [], [f"{constants}/[1]"], "/model/constant_nodes/INT64/[1]", value=axis
        ),
        node("ReduceSum", "ReduceSum", ["attention_mask", f"{constants}/[1]"], keepdims=0),
        node("Sub", "Sub", [f"{MASK}/ReduceSum/output_0", f"{constants}/[1]"]),
        node("Cast", "Sub/Cast", [f"{MASK}/Sub/output_0"], to=INT32),
        node("Shape", "Shape", ["attention_mask"]),
        helper.make_node(
            "Constant", [], [f"{constants}/1"], "/model/constant_nodes/INT64/1", value=one
        ),
        node("Gather", "Gather", [f"{MASK}/Shape/output_0", f"{constants}/1"], axis=0),
        node("Cast", "Gather/Cast", [f"{MASK}/Gather/output_0"], to=INT32),
    ]


def decoder_nodes() -> list[onnx.NodeProto]:
    embedded = "/model/embed_tokens/Gather/output_0"
    nodes = [
        helper.make_node(
            "Gather",
            ["model.embed_tokens.weight", "input_ids"],
            [embedded],
            "/model/embed_tokens/Gather",
        )
    ]
    norm = "/model/layers.0/input_layernorm"
    nodes.append(
        helper.make_node(
            "SimplifiedLayerNormalization",
            [embedded, "model.layers.0.input_layernorm.weight"],
            [f"{norm}/output_0"],
            f"{norm}/LayerNorm",
            axis=-1,
            epsilon=model.RMS_NORM_EPS,
            stash_type=1,
        )
    )
    residual = embedded
    for layer in range(model.LAYERS):
        path = f"/model/layers.{layer}"
        nodes += attention_nodes(layer, f"{path}/input_layernorm/output_0")
        after = f"{path}/post_attention_layernorm"
        nodes.append(skip_norm(residual, f"{path}/attn/o_proj/MatMul/output_0", after))
        nodes += mlp_nodes(layer, f"{after}/output_0")
        last = layer == model.LAYERS - 1
        following = "final_norm_layernorm" if last else "input_layernorm"
        path_after = f"/model/layers.{layer + 1}/{following}"
        added = f"{path}/mlp/down_proj/MatMul/output_0"
        nodes.append(skip_norm(f"{after}/output_3", added, path_after, last=last))
        residual = f"{path_after}/output_3"
    nodes.append(
        helper.make_node(
            "MatMul",
            [f"{path_after}/output_0", "lm_head.MatMul.weight"],
            ["logits"],
            "/lm_head/MatMul",
        )
    )
    return nodes


def skip_norm(residual: str, added: str, path: str, last: bool = False) -> onnx.NodeProto:
    """The sum of two inputs (output 3) and its norm (output 0)."""
    weight = path.removeprefix("/").replace("/", ".") + ".weight"
    results = [f"{path}/output_0"] + ([] if last else ["", "", f"{path}/output_3"])
    return helper.make_node(
        "SkipSimplifiedLayerNormalization",
        [residual, added, weight],
        results,
        f"{path}/SkipLayerNorm",
        domain=CONTRIB,
        epsilon=model.RMS_NORM_EPS,
    )


def matmul(path: str, source: str) -> onnx.NodeProto:
    weight = path.removeprefix("/").replace("/", ".") + ".weight"
    return helper.make_node("MatMul", [source, weight], [f"{path}/output_0"], path)


def attention_nodes(layer: int, source: str) -> list[onnx.NodeProto]:
    path = f"/model/layers.{layer}/attn"
    attention = helper.make_node(
        "GroupQueryAttention",
        [
            f"{path}/qkv_proj/MatMul/output_0",
            "",
            "",
            f"past_key_values.{layer}.key",
            f"past_key_values.{layer}.value",
            f"{MASK}/Sub/Cast/output_0",
            f"{MASK}/Gather/Cast/output_0",
            "cos_cache",
            "sin_cache",
        ],
        [
            f"{path}/GroupQueryAttention/output_0",
            f"present.{layer}.key",
            f"present.{layer}.value",
        ],
        f"{path}/GroupQueryAttention",
        domain=CONTRIB,
        num_heads=model.HEADS,
        kv_num_heads=model.KV_HEADS,
        scale=model.HEAD_DIM**-0.5,
        local_window_size=-1,
        softcap=0.0,
        do_rotary=1,
        rotary_interleaved=0,
    )
    return [
        matmul(f"{path}/qkv_proj/MatMul", source),
        attention,
        matmul(f"{path}/o_proj/MatMul", f"{path}/GroupQueryAttention/output_0"),
    ]


def mlp_nodes(layer: int, source: str) -> list[onnx.NodeProto]:
    path = f"/model/layers.{layer}/mlp"
    gate, up = f"{path}/gate_proj/MatMul/output_0", f"{path}/up_proj/MatMul/output_0"
    sigmoid, silu, product = (
        f"{path}/act_fn/Sigmoid/output_0",
        f"{path}/act_fn/Mul/output_0",
        f"{path}/Mul/output_0",
    )
    return [
        matmul(f"{path}/gate_proj/MatMul", source),
        matmul(f"{path}/up_proj/MatMul", source),
        helper.make_node("Sigmoid", [gate], [sigmoid], f"{path}/act_fn/Sigmoid"),
        helper.make_node("Mul", [gate, sigmoid], [silu], f"{path}/act_fn/Mul"),
        helper.make_node("Mul", [silu, up], [product], f"{path}/Mul"),
        matmul(f"{path}/down_proj/MatMul", product),
    ]


if __name__ == "__main__":
    Path(sys.argv[1]).write_bytes(demo_graph().SerializeToString(deterministic=True))
