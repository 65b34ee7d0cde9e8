"""Decoder: what genai_config.json says about running the text decoder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from forward.ryzen_ai import RyzenAI, read_ryzen_ai
from packimport.errors import ContainerError
from packimport.pack.container import Container
from packimport.pack.digests import sha256_of_files
from packimport.pack.documents import MAX_BYTES, Document, read_json

FILE = "genai_config.json"

# Session options that name native code or files for it: to obey them would run a
# stranger's code, to pass over them would run another model than the one that is meant.
# How the runtimes of Ryzen AI 1.3 to 1.6 obey them is not published.
_REFUSED_OPTIONS = ("custom_allocator", "external_data_file")
_LIBRARY = "custom_ops_library"


@dataclass(frozen=True, kw_only=True, slots=True)
class Decoder:
    """How the decoder's graph is fed. Names are those of the graph's inputs and outputs.

    graph:          its ONNX file, relative to the container.
    layers:         how many pasts it may take.
    past_key, …:    name patterns with one `%d` for the layer. `conv` and `recurrent` are of
                    layers without attention.
    vocab_size:     token ids are below it.
    context_length: the most tokens that the pack is meant for.
    eos:            token ids that end a text.
    share_buffer:   whether past and present are meant to be one buffer.
    library:        the custom operators in the pack that the caller allowed, or None.
    ryzen_ai:       what the pack says to the runtime of Ryzen AI; None where it names none.
    """

    graph: str
    layers: int
    head_size: int
    kv_heads: int
    vocab_size: int
    context_length: int
    eos: tuple[int, ...]
    share_buffer: bool
    library: str | None
    input_ids: str
    attention_mask: str
    position_ids: str
    past_key: str
    past_value: str
    logits: str
    present_key: str
    present_value: str
    past_conv: str
    past_recurrent: str
    present_conv: str
    present_recurrent: str
    ryzen_ai: RyzenAI | None = None

    def of_layers(self, *patterns: tuple[str, str]) -> tuple[tuple[str, str], ...]:
        """Past and present of each pair of patterns, layer by layer."""
        return tuple(
            (past.replace("%d", str(layer)), present.replace("%d", str(layer)))
            for layer in range(self.layers)
            for past, present in patterns
        )


def read_decoder(container: Container, custom_ops: str | None = None) -> Decoder:
    """The decoder of a pack.

    custom_ops: the sha256 of a library of custom operators that may be loaded.
    Raises DocumentError where a key is missing or of another kind, and ContainerError
    for packs of several graphs and for options that load native code nobody allowed.
    """
    if not container.has(FILE):
        raise ContainerError(
            f"no {FILE}: nothing says how the graph is fed",
            place=str(container.path),
            fix="Pass a pack made for onnxruntime-genai.",
        )
    config = Document(FILE, read_json(container.read_bytes(FILE, MAX_BYTES), FILE))
    model, search = config.require("model"), config.get("search")
    decoder = model.require("decoder")
    options = list(_session_options(decoder))
    _refuse_native_code(options)
    library = _library(container, options, custom_ops)
    share = None if search is None else search.get("past_present_share_buffer")
    if decoder.get("pipeline") is not None:
        raise ContainerError(
            "a pack of several graphs (pipeline) can't be run yet",
            place=f"{FILE}#/model/decoder/pipeline",
            allowed="one graph, model.decoder.filename",
            fix="`forward-serve CONTAINER --probe` proves its tables.",
        )
    filename = decoder.require("filename").text()
    inputs, outputs = decoder.get("inputs"), decoder.get("outputs")
    return Decoder(
        graph=container.safe_name(filename, FILE),
        layers=decoder.require("num_hidden_layers").integer(1, 10_000),
        head_size=decoder.require("head_size").integer(1),
        kv_heads=decoder.require("num_key_value_heads").integer(1),
        vocab_size=model.require("vocab_size").integer(1),
        context_length=model.require("context_length").integer(1),
        eos=_ids(model.get("eos_token_id")),
        share_buffer=share is not None and share.boolean(),
        library=library,
        input_ids=_name(inputs, "input_ids", "input_ids"),
        attention_mask=_name(inputs, "attention_mask", "attention_mask"),
        position_ids=_name(inputs, "position_ids", "position_ids"),
        past_key=_pattern(inputs, "past_key_names", "past_key_values.%d.key"),
        past_value=_pattern(inputs, "past_value_names", "past_key_values.%d.value"),
        logits=_name(outputs, "logits", "logits"),
        present_key=_pattern(outputs, "present_key_names", "present.%d.key"),
        present_value=_pattern(outputs, "present_value_names", "present.%d.value"),
        past_conv=_pattern(inputs, "past_conv_names", "past_key_values.%d.conv_state"),
        past_recurrent=_pattern(
            inputs, "past_recurrent_names", "past_key_values.%d.recurrent_state"
        ),
        present_conv=_pattern(outputs, "present_conv_names", "present.%d.conv_state"),
        present_recurrent=_pattern(
            outputs, "present_recurrent_names", "present.%d.recurrent_state"
        ),
        ryzen_ai=read_ryzen_ai(container, decoder.get("session_options")),
    )


def _session_options(decoder: Document) -> Iterator[Document]:
    """Those of the decoder, and of each stage of a pipeline."""
    stages = [decoder]
    pipeline = decoder.get("pipeline")
    if pipeline is not None:
        stages += [stage for entry in pipeline.items() for stage in entry.fields().values()]
    for stage in stages:
        options = stage.get("session_options")
        if options is not None:
            yield options


def _refuse_native_code(options: Sequence[Document]) -> None:
    for key in _REFUSED_OPTIONS:
        for value in filter(None, (stage.get(key) for stage in options)):
            raise ContainerError(
                f"the pack asks for {key}, which forward-serve never loads",
                place=value.place,
                found=value.value,
                fix="Such a pack runs only in its vendor's environment."
                " `forward-serve CONTAINER --probe` needs no device.",
            )


def _library(
    container: Container, options: Sequence[Document], custom_ops: str | None
) -> str | None:
    named = [value for stage in options if (value := stage.get(_LIBRARY)) is not None]
    if not named:
        if custom_ops is not None:
            raise ContainerError(
                "the pack names no library of custom operators",
                place=f"{FILE}#/model/decoder/session_options",
                fix="Leave --allow-custom-ops out.",
            )
        return None
    if custom_ops is None:
        raise ContainerError(
            f"the pack asks for {_LIBRARY}, native code that forward-serve never loads unasked",
            place=named[0].place,
            found=named[0].value,
            fix="If you trust that file in the pack: --allow-custom-ops and its sha256."
            " `forward-serve CONTAINER --probe` needs no library.",
        )
    names = {container.safe_name(value.text(), FILE) for value in named}
    for name in sorted(names):
        digest = sha256_of_files(container, (name,))[name]
        if digest != custom_ops.lower():
            raise ContainerError(
                "the library of custom operators is not the one that was allowed",
                place=name,
                found=f"sha256 {digest}",
                allowed=custom_ops,
            )
    return names.pop()


def _ids(value: Document | None) -> tuple[int, ...]:
    """eos_token_id is one id or a list of them."""
    if value is None:
        return ()
    return value.integers(0) if value.is_list else (value.integer(0),)


def _name(names: Document | None, key: str, default: str) -> str:
    """A name, or onnxruntime-genai's own default (its src/config.h)."""
    value = None if names is None else names.get(key)
    return default if value is None else value.text()


def _pattern(names: Document | None, key: str, default: str) -> str:
    """A name with one `%d`, the layer."""
    pattern = _name(names, key, default)
    if pattern.count("%d") != 1 or pattern.count("%") != 1:
        value = None if names is None else names.get(key)
        assert value is not None  # the defaults have their %d
        raise value.error("not a name pattern", allowed="a name with one %d, the layer")
    return pattern
