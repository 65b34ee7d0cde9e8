"""Documents: the JSON and YAML files that packimport reads and writes.

`Document` (module `document`) wraps a value that was read; its getters refuse what
is missing or of another kind, with file and JSON pointer. They do the checking of
configs; `validate` (module `schemas`) is for the files of packimport itself.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from packimport.errors import DocumentError
from packimport.pack.document import Document
from packimport.pack.schemas import load_schema, schema_path, validate
from packimport.pack.strict_json import json_text, read_json

if TYPE_CHECKING:
    import yaml

__all__ = [
    "MAX_BYTES",
    "Document",
    "json_text",
    "load_json",
    "load_schema",
    "load_yaml",
    "read_json",
    "schema_path",
    "validate",
    "write_json",
]

# A config is a few kilobytes; a tokenizer, the largest JSON of a pack, some ten megabytes.
MAX_BYTES = 64 * 2**20
_BINARY = getattr(os, "O_BINARY", 0)
_NONBLOCK = getattr(os, "O_NONBLOCK", 0)


def load_json(path: Path, file: str | None = None, limit: int = MAX_BYTES) -> object:
    """The value of the JSON file at `path`; `file` is its name in errors.

    Raises DocumentError where it can't be read, is larger than `limit` bytes,
    or is not strict JSON.
    """
    return read_json(_bytes(path, file or str(path), limit), file or str(path))


def load_yaml(path: Path, file: str | None = None, limit: int = MAX_BYTES) -> object:
    """The value of the YAML file at `path`, by the safe loader.

    Raises DocumentError where it can't be read, is larger than `limit` bytes,
    or is malformed; also for a key that stands twice in one mapping.
    """
    import yaml

    name = file or str(path)
    try:
        # The C loader, where the wheel of PyYAML has it, takes a tenth of the time.
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(_bytes(path, name, limit))
        node = loader.get_single_node()
        if node is None:
            return None
        _check_unique(node, name)
        value: object = loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = name if mark is None else f"{name}:{mark.line + 1}:{mark.column + 1}"
        raise DocumentError(f"malformed YAML: {error.problem}", place=place) from None
    except yaml.YAMLError as error:
        raise DocumentError(f"malformed YAML: {error}", place=name) from None
    except RecursionError:
        raise DocumentError("nested too deep", place=name) from None
    return value


def write_json(path: Path, value: object) -> None:
    """Write `value` as UTF-8 JSON to a new or existing file; see `json_text`."""
    path.write_text(json_text(value), encoding="utf-8", newline="\n")


def _check_unique(root: yaml.Node, name: str) -> None:
    """YAML's own rule is that a key stands once; its loaders let the last one win."""
    pending, visited = [root], set[int]()
    while pending:
        node = pending.pop()
        if id(node) in visited:
            continue  # an alias
        visited.add(id(node))
        children = node.value if isinstance(node.value, list) else []
        seen: set[str] = set()
        for child in children:
            key, value = child if isinstance(child, tuple) else (None, child)
            pending.append(value)
            if key is None or not isinstance(key.value, str):
                continue
            if key.value in seen:
                mark = key.start_mark
                place = f"{name}:{mark.line + 1}:{mark.column + 1}"
                raise DocumentError("this key stands twice", place=place, found=key.value)
            seen.add(key.value)


def _bytes(path: Path, name: str, limit: int) -> bytes:
    try:
        # A FIFO must not make us wait for somebody who writes into it.
        descriptor = os.open(path, os.O_RDONLY | _BINARY | _NONBLOCK)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise DocumentError("not a file", place=name, allowed="a regular file")
            with open(descriptor, "rb", closefd=False) as stream:
                data = stream.read(limit + 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise DocumentError(f"can't be read: {error.strerror or error}", place=name) from None
    if len(data) > limit:
        raise DocumentError("the file is too large", place=name, allowed=f"{limit} bytes")
    return data
