"""Native code: libraries that a pack asks its runtime to load. They are reported, never loaded."""

from __future__ import annotations

from collections.abc import Iterator

from packimport.audit.checks import Finding, finding
from packimport.pack.container import Container
from packimport.pack.documents import Document, read_json
from packimport.semantics.genai import FILE

# A genai_config.json is a few kilobytes.
_LIMIT = 16 * 2**20
_OPTION = "custom_ops_library"


def native_code(container: Container) -> Iterator[Finding]:
    """A note for each place in genai_config.json that names a library."""
    if not container.has(FILE):
        return
    for node in _named(Document(FILE, read_json(container.read_bytes(FILE, _LIMIT), FILE))):
        library = node.value if isinstance(node.value, str) else node.place
        where = "it lies in the pack" if container.has(library) else "it does not lie in the pack"
        yield finding(
            "RPE017",
            f"running the pack loads native code; {where}. Nothing of it was loaded here",
            pointer=node.place,
            found=library,
            fix="run it only if you trust it: forward-serve --allow-custom-ops SHA256",
        )


def _named(node: Document) -> Iterator[Document]:
    """Every option of that name, wherever it stands: a pipeline has one per stage."""
    if node.is_object:
        for key, item in node.fields().items():
            if key == _OPTION and item.value is not None:
                yield item
            else:
                yield from _named(item)
    elif node.is_list:
        for item in node.items():
            yield from _named(item)
