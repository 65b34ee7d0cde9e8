"""Findings ─▶ Edits ─▶ a new container that holds what it declares.

The module is not called `patch`: that name is the function of the API, `packimport.patch`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from packimport import __version__
from packimport.audit.audit import check, judge
from packimport.audit.checks import CHECKS
from packimport.audit.judge import JudgedSite
from packimport.audit.report import Report
from packimport.errors import PatchError
from packimport.graph.encodings import encode
from packimport.graph.site import TensorSpan
from packimport.pack.container import Container, open_container
from packimport.pack.edits import Edit, merged
from packimport.pack.manifest import MANIFEST, FileRecord, Manifest, edit_records, read_manifest
from packimport.pack.progress import OnProgress
from packimport.pack.writer import write_container
from packimport.rope.tables import table
from packimport.semantics.describe import describe
from packimport.semantics.reader import CONFIG, read_semantics, source_config


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a patch would do to a container, worked out before anything is written."""

    container: Container
    report: Report
    edits: tuple[Edit, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Patched:
    """What a patch did: the check before, the spans replaced, the check of the result."""

    out: Path
    before: Report
    edits: tuple[Edit, ...]
    after: Report

    def text(self) -> str:
        """The patch for a person."""
        if not self.edits:
            return f"{self.out}: nothing to mend; copied, with a manifest"
        size = sum(edit.length for edit in self.edits)
        lines = [f"{self.out}: {self.after.verdict}; {size} bytes of tables written"]
        lines += [f"  {edit.file} at {edit.offset}: {edit.reason}" for edit in self.edits]
        return "\n".join(lines)


def plan(container: str | Path, config: str | Path | None = None, model: str | None = None) -> Plan:
    """Check a pack and work out the Edits that mend it; () where it is right already.

    Raises PatchError where a finding can't be cured by other table bytes, and where
    nothing is declared; PackimportError as `check` does.
    """
    opened = open_container(Path(container))
    semantics = read_semantics(opened, None if config is None else Path(config), model)
    report = judge(opened, semantics)
    _refuse_unmendable(report)
    edits = merged(edit for judged in report.sites for edit in _edits(opened, judged))
    return Plan(container=opened, report=report, edits=tuple(edits))


def patch(
    container: str | Path,
    out: str | Path,
    config: str | Path | None = None,
    model: str | None = None,
    *,
    on_progress: OnProgress | None = None,
) -> Patched:
    """Write `container` to the new folder `out` with the tables that it declares.

    Only the bytes of wrong tables differ. `out` holds packimport.json: the manifest
    and the declaration; and the source config as config.json where the pack has none.
    `out` is checked before it gets its name. Raises as `plan` does, and ContainerError
    where `out` exists or can't be written; nothing is left of it then.
    """
    made = plan(container, config, model)
    checked: list[Report] = []

    def inspect(folder: Path) -> None:
        after = check(folder)
        if after.verdict != "ok":
            raise AssertionError(f"the written pack is not right: {after.text()}")
        checked.append(after)

    write_container(
        made.container,
        out,
        made.edits,
        _extra_files(made, config, model),
        lambda records: _manifest(made, records),
        inspect=inspect,
        on_progress=on_progress,
    )
    return Patched(out=Path(out), before=made.report, edits=made.edits, after=checked[0])


def _refuse_unmendable(report: Report) -> None:
    stuck = [f for f in report.findings if f.severity == "error" and not CHECKS[f.code].mendable]
    if stuck:
        more = f" (and {len(stuck) - 1} more)" if len(stuck) > 1 else ""
        raise PatchError(
            f"{stuck[0].code}: {stuck[0].message}{more}",
            place=stuck[0].graph or report.path,
            found=stuck[0].found,
            allowed=stuck[0].expected,
            fix=f"Nothing was written. To do: {stuck[0].fix}.",
        )


def _edits(container: Container, judged: JudgedSite) -> Iterator[Edit]:
    if not judged.measurement.wrong_pairs:
        return
    (rope,) = judged.ropes
    assert rope is not None  # a table that must not be there is not mendable
    right = table(rope, judged.site.rows)
    reason = f"{judged.measurement.baked_as} becomes {describe(rope)}"
    site = judged.site
    encoded = encode(right, site.cos.dtype, site.encoding)
    for span, new in zip((site.cos, site.sin), encoded, strict=True):
        edit = _edit(container, span, new, reason)
        if edit.new_sha256 != edit.old_sha256:
            yield edit


def _edit(container: Container, span: TensorSpan, new: bytes, reason: str) -> Edit:
    old = container.map(span.file, span.offset, span.length)
    return Edit(
        file=span.file,
        offset=span.offset,
        new=new,
        old_sha256=hashlib.sha256(old).hexdigest(),
        reason=f"{span.name}: {reason}",
    )


def _extra_files(made: Plan, config: str | Path | None, model: str | None) -> Mapping[str, bytes]:
    if made.container.has(CONFIG):
        return {}
    source = source_config(None if config is None else Path(config), model)
    return {} if source is None else {CONFIG: source}


def _manifest(made: Plan, records: tuple[FileRecord, ...]) -> Manifest:
    return Manifest(
        tool_version=__version__,
        container_format="folder",
        source={"path": str(made.container.path), "format": made.container.format},
        files=records,
        edits=edit_records(made.edits),
        semantics=made.report.semantics.to_dict(),
        declaration=_declaration(made),
    )


def _declaration(made: Plan) -> Mapping[str, object] | None:
    declaration = made.report.semantics.declaration
    if declaration is None:
        return None
    if declaration.origin == MANIFEST:
        # Patched again: where the declaration first came from is kept.
        earlier = read_manifest(made.container)
        return None if earlier is None else earlier.declaration
    return declaration.to_dict()
