"""genai_config.json: the pack's word on sizes, lengths and graphs. It never states a schedule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from packimport.pack.document import MAX_INTEGER
from packimport.pack.documents import Document
from packimport.pack.names import refusal

FILE = "genai_config.json"
# Lengths that options of a provider or a session state, as strings.
_LENGTH_OPTIONS = ("hybrid_opt_max_seq_length", "max_length_for_kv_cache")
_DIGITS = len(str(MAX_INTEGER))
_DIMENSIONS = {
    "head_dim": "head_size",
    "hidden_size": "hidden_size",
    "num_attention_heads": "num_attention_heads",
    "num_key_value_heads": "num_key_value_heads",
    "num_hidden_layers": "num_hidden_layers",
}


@dataclass(frozen=True, slots=True)
class GenaiConfig:
    """What genai_config.json says of the decoder.

    dimensions:     sizes by the name that Semantics has for them.
    context_length: model.context_length, often the model's and not the pack's.
    usable_length:  the least length stated, and where.
    graphs:         the decoder's ONNX files, relative to the container.
    inputs:         names of graph inputs, by the keys of model.decoder.inputs.
    """

    dimensions: dict[str, Document]
    context_length: Document | None
    usable_length: tuple[int, Document] | None
    graphs: tuple[str, ...]
    inputs: Mapping[str, str]


EMPTY = GenaiConfig({}, None, None, (), {})


def read_genai_config(document: Document) -> GenaiConfig:
    """Read a genai_config.json.

    Raises DocumentError for a wrong type, a length that is not a positive
    integer, and a graph that is not a plain path within the container.
    """
    model = document.require("model")
    decoder = model.get("decoder")
    search = document.get("search")
    context = model.get("context_length")
    if context is not None:
        context.integer(1)
    dimensions = {}
    for name, key in _DIMENSIONS.items() if decoder is not None else ():
        node = decoder.get(key) if decoder is not None else None
        if node is not None:
            node.integer(1)
            dimensions[name] = node
    return GenaiConfig(
        dimensions=dimensions,
        context_length=context,
        usable_length=_usable_length(context, search, decoder),
        graphs=() if decoder is None else tuple(dict.fromkeys(_graphs(decoder))),
        inputs={} if decoder is None else _inputs(decoder),
    )


def _inputs(decoder: Document) -> dict[str, str]:
    inputs = decoder.get("inputs")
    return {} if inputs is None else {key: node.text() for key, node in inputs.fields().items()}


def _usable_length(
    context: Document | None, search: Document | None, decoder: Document | None
) -> tuple[int, Document] | None:
    lengths = [] if context is None else [(context.integer(1), context)]
    longest = None if search is None else search.get("max_length")
    # 0 leaves the length to context_length. Source: onnxruntime-genai, `Config::Config`.
    if longest is not None and longest.integer(0) > 0:
        lengths.append((longest.integer(), longest))
    if decoder is not None:
        lengths.extend((_length(node), node) for node in _options(decoder))
    return min(lengths, key=lambda item: item[0], default=None)


def _options(node: Document) -> Iterator[Document]:
    """The options that limit the length, wherever they stand under `node`."""
    if node.is_object:
        for key, item in node.fields().items():
            if key in _LENGTH_OPTIONS:
                yield item
            else:
                yield from _options(item)
    elif node.is_list:
        for item in node.items():
            yield from _options(item)


def _length(node: Document) -> int:
    """A length that may be written as a string."""
    text = node.value
    if not isinstance(text, str):
        return node.integer(1)
    # Python refuses to read numbers of thousands of digits.
    is_number = text.isascii() and text.isdigit() and len(text.lstrip("0")) <= _DIGITS
    if not (is_number and 0 < int(text.lstrip("0") or 0) <= MAX_INTEGER):
        raise node.error(
            "not a length",
            allowed=f"a positive integer up to {MAX_INTEGER}, or one as a string",
        )
    return int(text.lstrip("0"))


def _graphs(decoder: Document) -> Iterator[str]:
    stages = [decoder]
    pipeline = decoder.get("pipeline")
    if pipeline is not None:
        stages += [stage for entry in pipeline.items() for stage in entry.fields().values()]
    for stage in stages:
        filename = stage.get("filename")
        if filename is not None:
            yield _plain_path(filename)


def _plain_path(node: Document) -> str:
    path = node.text()
    for part in path.split("/"):
        reason = refusal(part)
        if reason is not None or ":" in part:
            raise node.error(
                "not a plain path within the pack",
                allowed="names joined by `/`, such as model.onnx",
            )
    return path
