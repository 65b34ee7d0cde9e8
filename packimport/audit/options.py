"""Options: what genai_config says about how an execution provider reads tables."""

from __future__ import annotations

from collections.abc import Iterator

from packimport.pack.container import Container
from packimport.pack.documents import Document, read_json
from packimport.semantics.genai import FILE

# A genai_config.json is a few kilobytes.
_LIMIT = 16 * 2**20
# WebGPU and TensorRT RTX: the row where the table for long calls starts.
_OPTIONS = frozenset({"multiRotaryCacheConcatOffset", "multi_rotary_cache_concat_offset"})


def long_rows(container: Container) -> int | None:
    """The row where tables for long calls start in tables of two lengths; None where unsaid.

    Raises DocumentError where it is no count of rows, or several options differ.
    """
    if not container.has(FILE):
        return None
    found: Document | None = None
    for option in _named(Document(FILE, read_json(container.read_bytes(FILE, _LIMIT), FILE))):
        rows = _count(option)
        if found is not None and rows != _count(found):
            raise option.error(f"differs from {found.place}", allowed=str(_count(found)))
        found = option
    # 0 is the provider's own word for a table of one length.
    return None if found is None else _count(found) or None


def _count(option: Document) -> int:
    value = option.value
    # Providers take texts only.
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) < 10:
        return int(value)
    raise option.error("no count of rows", allowed='a number as text, such as "4096"')


def _named(node: Document) -> Iterator[Document]:
    if node.is_object:
        for key, item in node.fields().items():
            if key in _OPTIONS:
                yield item
            else:
                yield from _named(item)
    elif node.is_list:
        for item in node.items():
            yield from _named(item)
