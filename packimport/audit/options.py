"""Options: what genai_config tells a session, or a provider of one."""

from __future__ import annotations

from collections.abc import Iterator

from packimport.pack.container import Container
from packimport.pack.documents import Document, read_json
from packimport.semantics.genai import FILE

# A genai_config.json is a few kilobytes.
_LIMIT = 16 * 2**20
# WebGPU and TensorRT RTX: the row where the table for long calls starts.
_LONG_ROWS = ("multiRotaryCacheConcatOffset", "multi_rotary_cache_concat_offset")
# onnxruntime-genai reads it in any case, with the suffix ExecutionProvider or without.
_PROVIDER = "ryzenai"
_DEVICE_ROPE = "hybrid_dbg_use_aie_rope"


def options(container: Container, *names: str) -> Iterator[Document]:
    """Every option of these names, wherever it stands; null as well.

    A session has options, each provider of it as well, and a pipeline has a session
    per stage. Raises DocumentError where genai_config.json is malformed.
    """
    whole = _whole(container)
    if whole is not None:
        yield from _named(whole, frozenset(names))


def _whole(container: Container) -> Document | None:
    if not container.has(FILE):
        return None
    return Document(FILE, read_json(container.read_bytes(FILE, _LIMIT), FILE))


def long_rows(container: Container) -> int | None:
    """The row where tables for long calls start in tables of two lengths; None where unsaid.

    Raises DocumentError where it is no count of rows, or several options differ.
    """
    found: Document | None = None
    for option in options(container, *_LONG_ROWS):
        rows = _count(option)
        if found is not None and rows != _count(found):
            raise option.error(f"differs from {found.place}", allowed=str(_count(found)))
        found = option
    # 0 is the provider's own word for a table of one length.
    return None if found is None else _count(found) or None


def rotates_by_node(container: Container) -> bool:
    """Whether the pack tells Ryzen AI's runtime not to rotate on the device, in any session.

    Then each node uses its own table.
    """
    said = [option.value for option in _device_options(container) if option is not None]
    return bool(said) and all(str(value) == "0" for value in said)


def _device_options(container: Container) -> Iterator[Document | None]:
    """The option where the runtime looks for it: in the sessions of the decoder.

    Among a session's options, which onnxruntime-genai takes for config entries, its config
    entries, and the options of the provider.
    """
    whole = _whole(container)
    model = None if whole is None else whole.get("model")
    decoder = None if model is None else model.get("decoder")
    for session in _named(decoder, frozenset({"session_options"})) if decoder is not None else ():
        if not session.is_object:
            continue
        entries, providers = session.get("config_entries"), session.get("provider_options")
        yield session.get(_DEVICE_ROPE)
        yield None if entries is None else entries.get(_DEVICE_ROPE)
        for entry in providers.items() if providers is not None else ():
            for name, settings in entry.fields().items():
                if name.lower().removesuffix("executionprovider") == _PROVIDER:
                    yield settings.get(_DEVICE_ROPE)


def _count(option: Document) -> int:
    value = option.value
    # Providers take texts only.
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        return int(value)
    raise option.error("no count of rows", allowed='a number as text, such as "4096"')


def _named(node: Document, names: frozenset[str]) -> Iterator[Document]:
    if node.is_object:
        for key, item in node.fields().items():
            if key in names:
                yield item
            else:
                yield from _named(item, names)
    elif node.is_list:
        for item in node.items():
            yield from _named(item, names)
