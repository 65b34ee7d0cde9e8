"""What tests do with Ryzen AI packs: change the graph on the disk, check, and list the errors."""

from __future__ import annotations

from collections.abc import Callable

import onnx
from ryzen_packs import Pack

from packimport import Report, check

Change = Callable[[onnx.ModelProto], None]


def edited(pack: Pack, change: Change | None) -> Pack:
    """The pack, its graph changed on the disk."""
    if change is not None:
        model = pack.model()
        change(model)
        (pack.path / pack.graph).write_bytes(model.SerializeToString())
    return pack


def judged(pack: Pack) -> Report:
    return check(pack.path, config=pack.config)


def errors(report: Report) -> set[str]:
    return {f.code for f in report.findings if f.severity == "error"}
