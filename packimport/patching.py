"""Findings ─▶ Edits ─▶ a new container that holds what it declares.

The module is not called `patch`: that name is the function of the API, `packimport.patch`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packimport.audit.audit import check, judge
from packimport.audit.report import Report
from packimport.errors import printable
from packimport.mending.plan import mending
from packimport.pack.additions import Addition, Change, Replacement, of_kind
from packimport.pack.archive import opened
from packimport.pack.container import Container, open_container
from packimport.pack.edits import Edit
from packimport.pack.manifest import (
    MANIFEST,
    EditRecord,
    FileRecord,
    GraphChangeRecord,
    Manifest,
    addition_records,
    edit_records,
    read_manifest,
    replacement_records,
)
from packimport.pack.progress import OnProgress
from packimport.pack.signals import interruptible
from packimport.pack.writer import refuse_taken, write_container
from packimport.semantics.reader import CONFIG, read_semantics, source_config
from packimport.version import __version__


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """What a patch would do to a container, worked out before anything is written.

    changes:       spans replaced, spans added, and files made anew.
    graph_changes: what else than table bytes changes in graphs, and why.
    """

    container: Container
    report: Report
    changes: tuple[Change, ...]
    graph_changes: tuple[GraphChangeRecord, ...] = ()

    @property
    def edits(self) -> tuple[Edit, ...]:
        """The spans replaced in place."""
        return tuple(of_kind(self.changes, Edit))


@dataclass(frozen=True, kw_only=True, slots=True)
class Patched:
    """What a patch did: the check before, what was changed, the check of the result.

    changes, graph_changes: as in `Plan`.
    """

    out: Path
    before: Report
    changes: tuple[Change, ...]
    graph_changes: tuple[GraphChangeRecord, ...]
    after: Report

    @property
    def edits(self) -> tuple[Edit, ...]:
        """The spans replaced in place."""
        return tuple(of_kind(self.changes, Edit))

    def text(self) -> str:
        """The patch for a person."""
        if not self.changes:
            return f"{self.out}: nothing to mend; copied, with a manifest"
        lines = [f"{self.out}: {self.after.verdict}; {written_text(self.changes)}"]
        lines += change_lines(self.changes, self.graph_changes)
        return "\n".join(map(printable, lines))


def plan(
    container: str | Path,
    config: str | Path | None = None,
    model: str | None = None,
    *,
    bytes_only: bool = False,
) -> Plan:
    """Check a pack and work out the changes that mend it; () where it is right already.

    bytes_only: graphs may not be changed, only the bytes of their tables.

    Raises PatchError where a finding can't be cured, and where nothing is declared;
    PackimportError as `check` does.
    """
    return plan_for(open_container(Path(container)), config, model, bytes_only=bytes_only)


def plan_for(
    pack: Container,
    config: str | Path | None = None,
    model: str | None = None,
    *,
    bytes_only: bool = False,
) -> Plan:
    """The same for a container that is open."""
    semantics = read_semantics(pack, None if config is None else Path(config), model)
    report = judge(pack, semantics)
    made = mending(pack, report, bytes_only=bytes_only)
    return Plan(
        container=pack, report=report, changes=made.changes, graph_changes=made.graph_changes
    )


def patch(
    container: str | Path,
    out: str | Path,
    config: str | Path | None = None,
    model: str | None = None,
    *,
    bytes_only: bool = False,
    on_progress: OnProgress | None = None,
) -> Patched:
    """Write `container` to the new folder `out` with the tables that it declares.

    Only the bytes of wrong tables differ; where those do not suffice, the graph is
    changed as little as mends it, unless `bytes_only` forbids that. `out` holds
    packimport.json: the manifest and the declaration; and the source config as
    config.json where the pack has none.
    `out` is checked before it gets its name. Raises as `plan` does, and ContainerError
    where `out` exists or can't be written; nothing is left of it then.

    container: a folder, or an archive, of which `out` is the unpacked and mended pack.
    """
    # Before an archive is unpacked for nothing.
    refuse_taken(Path(out))
    # It is unpacked beside the output, on a disk that has to have room for it.
    with (
        opened(container, scratch=Path(out).parent, on_progress=on_progress) as pack,
        interruptible(),
    ):
        made = plan_for(pack, config, model, bytes_only=bytes_only)
        after = _written(made, out, extra_files(made, config, model), on_progress)
    return Patched(
        out=Path(out),
        before=made.report,
        changes=made.changes,
        graph_changes=made.graph_changes,
        after=after,
    )


def _written(
    made: Plan, out: str | Path, extra: Mapping[str, bytes], on_progress: OnProgress | None
) -> Report:
    """Write the patched pack; the check of it."""
    checked: list[Report] = []

    def inspect(folder: Path) -> None:
        after = check(folder)
        if after.verdict != "ok":
            raise AssertionError(f"the written pack is not right: {after.text()}")
        checked.append(after)

    write_container(
        made.container,
        out,
        made.changes,
        extra,
        lambda records: manifest_of(made, records),
        inspect=inspect,
        on_progress=on_progress,
    )
    return checked[0]


def written_text(changes: Sequence[Change]) -> str:
    """How much is changed, for a person: whether the graph is, and the bytes of tables."""
    size = sum(len(change.new) for change in changes if not isinstance(change, Replacement))
    parts = ["the graph is changed"] if any(of_kind(changes, Replacement)) else []
    if size or not parts:
        parts.append(f"{size} bytes of tables written")
    return "; ".join(parts)


def change_lines(
    changes: Iterable[Change], graph_changes: Iterable[GraphChangeRecord]
) -> Iterator[str]:
    """What is changed, for a person: a line per span, file and change of a graph."""
    changes = tuple(changes)
    reasons = iter(reasons_of(of_kind(changes, Edit)))
    for change in changes:
        if isinstance(change, Edit):
            yield f"  {change.file} at {change.offset}: {next(reasons)}"
        elif isinstance(change, Addition):
            yield f"  {change.file}, added at {change.offset}: {change.reason}"
        else:
            yield f"  {change.file}, the graph is changed:"
            for record in graph_changes:
                if record.graph == change.file:
                    yield f"    {record.where}: {record.change}; {record.reason}"


def reasons_of(edits: Iterable[Edit | EditRecord]) -> Iterator[str]:
    """The reason of each edit; what the one before has too, as of cos and sin, is said once.

    A reason is the name of a tensor and what becomes of it.
    """
    before = ""
    for edit in edits:
        name, _, what = edit.reason.partition(": ")
        yield f"{name}: the same" if what and what == before else edit.reason
        before = what


def extra_files(made: Plan, config: str | Path | None, model: str | None) -> Mapping[str, bytes]:
    """What the pack gains besides its manifest: config.json, where it has none."""
    if made.container.has(CONFIG):
        return {}
    source = source_config(None if config is None else Path(config), model)
    return {} if source is None else {CONFIG: source}


def manifest_of(made: Plan, records: tuple[FileRecord, ...]) -> Manifest:
    """The manifest of the patched pack whose files are `records`."""
    return Manifest(
        tool_version=__version__,
        container_format="folder",
        # A name that is no UTF-8 is escaped: JSON could not hold it.
        source={
            "path": printable(str(made.container.path)),
            "format": made.container.format,
        },
        files=records,
        edits=edit_records(made.changes),
        additions=addition_records(made.changes),
        replacements=replacement_records(made.changes),
        graph_changes=made.graph_changes,
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
