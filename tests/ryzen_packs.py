"""Packs of every Ryzen AI release, built from the facts of public packs: graphs and side files.

    pack = build("npu 1.6", tmp_path / "pack", LLAMA3, tables=LLAMA3.right(1024))

The genai_config files are those of `data/genai/`, real ones, with other numbers. Nothing
here comes from packimport.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from builders import write_json
from ryzen_graphs import (
    Body,
    DataFile,
    Options,
    Shape,
    Tables,
    combined,
    decoder,
    fused_prefill,
    model,
    single,
)
from ryzen_tables import Declared

GENAI = Path(__file__).parent / "data" / "genai"
Graph = Callable[[Options, DataFile], Body]


@dataclass(frozen=True)
class Family:
    """How the packs of one release look.

    graph:    the ONNX file; its data file is `<graph>.data`.
    make:     what is in it.
    weights:  the file of offloaded weights; its header is `<stem>.pb.bin`.
    config:   "full" where config.json is the model's, "empty" where it is `{}`, else "".
    header:   where genai_config names the header: "session" or "provider".
    side:     the other files, by name.
    defaults: of Options.
    fused:    whether one token has a graph of its own, in a branch.
    """

    graph: str
    make: Graph
    weights: str
    config: str
    header: str
    side: tuple[str, ...] = ()
    defaults: Mapping[str, Any] | None = None
    fused: bool = False


def token_fusion(options: Options, data: DataFile) -> Body:
    return combined(options, data, decoder)


def full_fusion(options: Options, data: DataFile) -> Body:
    return combined(options, data, lambda body, _: fused_prefill(body))


_STATE = tuple(
    f"dd_metastate_Llm_Token_MatMulNBits_2_0.{end}"
    for end in ("state", "fconst", "super", "ctrlpkt")
)
_CACHE = ("cache/txn_bins.zip", "cache/MatMulNBits_2_0_meta.json")
_SHAPES = tuple(
    f"cache/prefill_{length}.{end}"
    for length in (128, 256, 512, 1024, 2048, 3072, 4096)
    for end in ("ctrlpkt", "meta", "super")
)
_NAME = "Llama-3.2-1B-Instruct"

# Name ─▶ family. "hybrid 1.4" has the same layout as 1.3.
FAMILIES: Mapping[str, Family] = {
    "hybrid 1.4": Family(
        f"{_NAME}_jit.onnx", single, f"{_NAME}_jit.bin", "full", "session",
        defaults={"inputs": 10},
    ),
    "hybrid 1.4, 11 inputs": Family(
        f"{_NAME}_jit.onnx", single, f"{_NAME}_jit.bin", "full", "session",
        defaults={"inputs": 11},
    ),
    "hybrid 1.4, com.amd": Family(
        f"{_NAME}_jit.onnx", single, f"{_NAME}_jit.bin", "full", "session",
        defaults={"inputs": 10, "domain": "com.amd", "table_dtype": "float32"},
    ),
    "hybrid 1.4, com.amd GQA": Family(
        f"{_NAME}_jit.onnx", single, f"{_NAME}_jit.bin", "full", "session",
        defaults={
            "op": "AMDGroupQueryAttention", "domain": "com.amd", "table_dtype": "float32",
        },
    ),
    "npu 1.6": Family(
        "fusion.onnx", token_fusion, "prefill.bin", "empty", "session",
        side=(*_STATE, ".cache/MatMulNBits_2_0_meta.json", "rai_config.json"),
        defaults={"cache": "bfloat16"}, fused=True,
    ),
    "hybrid 1.7": Family("model_jit.onnx", single, "model_jit.bin", "", "provider"),
    "eager 1.8": Family(
        "model.onnx", single, "model.bin", "full", "provider", side=_CACHE,
        defaults={"cache": "bfloat16"},
    ),
    "token fusion 1.8": Family(
        "model.onnx", token_fusion, "model.bin", "full", "provider", side=(*_CACHE, *_SHAPES),
        defaults={"cache": "bfloat16"}, fused=True,
    ),
    "full fusion 1.8": Family(
        "model.onnx", full_fusion, "model.bin", "full", "provider", side=(*_CACHE, *_SHAPES),
        defaults={"cache": "bfloat16"}, fused=True,
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Pack:
    """A pack that was built.

    path:   its folder.
    graph:  the ONNX file, by name.
    source: the folder with the source model's config.json, beside the pack.
    config: `source` where the pack itself declares nothing, else None: what `--config` needs.
    """

    path: Path
    graph: str
    source: Path
    config: Path | None

    def model(self) -> onnx.ModelProto:
        """The graph, external data unread."""
        return onnx.load(str(self.path / self.graph), load_external_data=False)


def build(
    family: str,
    folder: Path,
    declared: Declared,
    *,
    tables: Tables | Callable[[int], Tables],
    usable: int | None = None,
    config: Mapping[str, Any] | None = None,
    settings: Mapping[str, str] | None = None,
    side_files: int = 0,
    **options: Any,
) -> Pack:
    """A pack of a family in `folder`; its source model's config in `<folder>-source`.

    declared: the schedule that config.json tells; its tables are what the test gives.
    tables:   cos and sin, any numbers, [rows, pairs]; layer ─▶ those for several distinct ones.
    usable:   the option for the longest sequence; as many as the tables have rows by default.
    config:   more keys of config.json.
    settings: more options of the session, such as hybrid_dbg_use_aie_rope.
    side_files: how many more small files lie in `cache/`.

    Further options, of `ryzen_graphs.Options`:
    token_tables: other cos and sin for the token branch, where only one branch is right.
    shape:       layers, heads, kv_heads, head_size, hidden, vocab.
    op, domain, inputs, packed: the attention node, the count of its inputs, one value for qkv.
    table_dtype: float16, float32 or bfloat16, of the GQO tables.
    interleaved, rotary_dim: attributes.
    place:       "branch": initializers of the branch, "main": of the main graph,
                 "constant": Constant nodes, "offloaded": dims [0], as if they lay in a .bin.
    token_place, prefill_place: "constant", "initializer" or "external".
    sparse:      weights are holes of the data file.
    """
    form = FAMILIES[family]
    made = Options(tables=tables, **{**(form.defaults or {}), **options})
    rows = len((tables(0) if callable(tables) else tables)[0])
    folder.mkdir(parents=True)
    data = DataFile(f"{form.graph}.data")
    graph = model(form.make(made, data))
    (folder / form.graph).write_bytes(graph.SerializeToString())
    data.write(folder)
    longest = declared.config["max_position_embeddings"]
    whole = {**source_config(made.shape, declared), **(config or {})}
    genai = genai_config(form, made, longest, usable or rows, settings or {})
    genai["model"]["type"] = whole["model_type"]
    write_json(folder / "genai_config.json", genai)
    source = folder.with_name(f"{folder.name}-source")
    source.mkdir()
    write_json(source / "config.json", whole)
    if form.config:
        write_json(folder / "config.json", whole if form.config == "full" else {})
    write_side_files(folder, form, graph, side_files)
    return Pack(folder, form.graph, source, None if form.config == "full" else source)


def source_config(shape: Shape, declared: Declared) -> dict[str, Any]:
    """config.json of the model that the pack was made from."""
    return {
        "hidden_size": shape.hidden,
        "intermediate_size": 2 * shape.hidden,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_size,
        "vocab_size": shape.vocab,
        "rms_norm_eps": 1e-5,
        **declared.config,
    }


def genai_config(
    form: Family, options: Options, longest: int, usable: int, more: Mapping[str, str]
) -> dict[str, Any]:
    """The real one of the nearest release, with this pack's numbers."""
    nearest = "ryzenai-1.7-hybrid" if form.header == "provider" else "ryzenai-1.6-npu"
    text = (GENAI / f"{nearest}.genai_config.json").read_text(encoding="utf-8")
    whole: dict[str, Any] = json.loads(text)
    shape, decoder_config = options.shape, whole["model"]["decoder"]
    whole["model"]["context_length"] = whole["search"]["max_length"] = longest
    whole["model"]["vocab_size"] = shape.vocab
    decoder_config |= {
        "filename": form.graph,
        "head_size": shape.head_size,
        "hidden_size": shape.hidden,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": shape.layers,
        "num_key_value_heads": shape.kv_heads,
    }
    header = f"{Path(form.weights).stem}.pb.bin"
    session = decoder_config["session_options"]
    if form.header == "provider":
        provider = session["provider_options"][0]["RyzenAI"]
        provider |= {"external_data_file": header, "hybrid_opt_max_seq_length": str(usable)}
        if form.side:
            provider |= {"hybrid_opt_token_backend": "npu", "hybrid_opt_chunk_context": "1"}
        provider |= more
    else:
        session["external_data_file"] = header
        entries = session["config_entries"]
        if form.fused:
            entries |= {
                "max_length_for_kv_cache": str(usable),
                "hybrid_opt_max_seq_length": str(usable),
            }
        else:
            session["config_entries"] = {"hybrid_opt_max_seq_length": str(usable)}
        session["config_entries"] |= more
    return whole


def write_side_files(folder: Path, form: Family, graph: onnx.ModelProto, more: int) -> None:
    """Offloaded weights, their header keyed by node name, and what the compiler left."""
    rng = np.random.default_rng(11)
    (folder / form.weights).write_bytes(rng.bytes(4096))
    header = folder / f"{Path(form.weights).stem}.pb.bin"
    names = [name for node in _nodes(graph.graph) if (name := node.name.encode()) and node.domain]
    header.write_bytes(b"".join(b"\n" + bytes([len(n) & 127]) + n for n in names))
    extra = tuple(f"cache/part_{i:04d}.{('ctrlpkt', 'meta', 'super')[i % 3]}" for i in range(more))
    for name in (*form.side, *extra):
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        if name == "rai_config.json":
            path.write_bytes((GENAI / "ryzenai-1.6-npu.rai_config.json").read_bytes())
        elif name.endswith("_meta.json"):
            write_json(path, META)
        elif name.endswith(".zip"):
            path.write_bytes(_archive(rng.bytes(64)))
        else:
            path.write_bytes(rng.bytes(64))


# The metadata of the fused token graph names its table as an input that no file holds.
META = {
    "major_version": 1,
    "tensor_map": {
        "sin_cos_cache_token": {"packed_buffer_label": "in", "dtype": "bfloat16", "file_name": ""},
        "MatMulNBits_2_0.const": {"file_name": ".cache\\MatMulNBits_2_0_0.const"},
    },
}


def _nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    inner = [a.g for node in graph.node for a in node.attribute if a.HasField("g")]
    return [*graph.node, *(node for body in inner for node in _nodes(body))]


def _archive(content: bytes) -> bytes:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        archive.writestr(zipfile.ZipInfo("txn_0.bin"), content)
    return whole.getvalue()
