"""packimport: reads, checks and mends the rotary position tables of ONNX LLM packs.

    read_semantics(PATH)        what a pack or a config.json declares
    frequencies(rope)           inv_freq and attention factor of one schedule
    table(rope, rows)           its cos and sin
    identify(cos, sin, [rope])  which schedule made a table
    check(CONTAINER)            what is baked against what is declared
    patch(CONTAINER, OUT)       the pack with the declared table
    patch_in_place(CONTAINER)   the same in the pack's own files
    undo(CONTAINER)             takes that back

Names are imported when first used, so that `import packimport` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from packimport.version import __version__

if TYPE_CHECKING:
    from packimport.audit.audit import check
    from packimport.audit.report import Report
    from packimport.in_place import patch_in_place, undo
    from packimport.patching import patch
    from packimport.rope.frequencies import Frequencies, frequencies
    from packimport.rope.identify import Identification, identify
    from packimport.rope.schedule import Rope
    from packimport.rope.tables import Table, table
    from packimport.semantics.model import Semantics
    from packimport.semantics.reader import read_semantics


__all__ = [
    "Frequencies",
    "Identification",
    "Report",
    "Rope",
    "Semantics",
    "Table",
    "__version__",
    "check",
    "frequencies",
    "identify",
    "patch",
    "patch_in_place",
    "read_semantics",
    "table",
    "undo",
]

_HOMES = {
    "Frequencies": "packimport.rope.frequencies",
    "Identification": "packimport.rope.identify",
    "Report": "packimport.audit.report",
    "Rope": "packimport.rope.schedule",
    "Semantics": "packimport.semantics.model",
    "Table": "packimport.rope.tables",
    "check": "packimport.audit.audit",
    "frequencies": "packimport.rope.frequencies",
    "identify": "packimport.rope.identify",
    "patch": "packimport.patching",
    "patch_in_place": "packimport.in_place",
    "read_semantics": "packimport.semantics.reader",
    "table": "packimport.rope.tables",
    "undo": "packimport.in_place",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
