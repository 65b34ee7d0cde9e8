"""A patch made in the files of the pack itself, and its taking back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from packimport.audit.audit import judge
from packimport.audit.report import Report
from packimport.errors import printable
from packimport.pack.additions import Change, of_kind
from packimport.pack.container import open_container
from packimport.pack.edits import Edit
from packimport.pack.in_place import write_in_place
from packimport.pack.lock import locked
from packimport.pack.manifest import (
    MANIFEST,
    AdditionRecord,
    EditRecord,
    FileRecord,
    GraphChangeRecord,
    Manifest,
    read_manifest,
)
from packimport.pack.undo import recover
from packimport.pack.undo import undo as undo_last
from packimport.patching import Plan, change_lines, extra_files, manifest_of, plan, written_text
from packimport.semantics.reader import read_semantics


@dataclass(frozen=True, kw_only=True, slots=True)
class PatchedInPlace:
    """What a patch in place did.

    changes, graph_changes: as in `patching.Plan`.
    recovered: what was done first about a run that did not end; None without one.
    added:     names of files that the pack did not have.
    written:   bytes, journal included; 0 where there was nothing to do.
    after:     the check of the result.
    """

    path: Path
    before: Report
    changes: tuple[Change, ...]
    graph_changes: tuple[GraphChangeRecord, ...]
    added: tuple[str, ...]
    written: int
    after: Report
    recovered: str | None

    @property
    def edits(self) -> tuple[Edit, ...]:
        """The spans replaced."""
        return tuple(of_kind(self.changes, Edit))

    def text(self) -> str:
        """The patch for a person."""
        if not self.written:
            return f"{self.path}: nothing to do"
        done = written_text(self.changes) if self.changes else "nothing to mend"
        lines = [f"{self.path}: {self.after.verdict}; {done}"]
        lines += change_lines(self.changes, self.graph_changes)
        lines += [f"  {name}: added" for name in self.added]
        lines.append(f"  {self.written} bytes in all, with the journal and {MANIFEST}")
        lines.append(f"  `packimport undo {self.path}` takes it back")
        return "\n".join(map(printable, lines))


def patch_in_place(
    container: str | Path,
    config: str | Path | None = None,
    model: str | None = None,
    *,
    bytes_only: bool = False,
) -> PatchedInPlace:
    """Give the pack in the folder `container` the tables that it declares.

    Written are the journal with the old bytes, the bytes of wrong tables, packimport.json,
    and the source config as config.json where the pack has none; no weight is read or
    written. A run that did not end is taken back first.

    Raises as `plan` does, and ContainerError for a pack that is no folder of files of
    its own, where another packimport is at work on it, and where the disk refuses;
    the pack is then as it was.
    """
    path = Path(container)
    with locked(path) as root:
        recovered = recover(root)
        made = plan(path, config, model, bytes_only=bytes_only)
        earlier = read_manifest(made.container)
        added = extra_files(made, config, model)
        if not made.changes and not added and says_the_same(earlier, made):
            return PatchedInPlace(
                path=path, before=made.report, changes=(), graph_changes=(), added=(), written=0,
                after=made.report, recovered=recovered,
            )  # fmt: skip
        checked: list[Report] = []

        def inspect() -> None:
            opened = open_container(path, unfinished=True)
            after = judge(opened, read_semantics(opened))
            if after.verdict != "ok":
                raise AssertionError(f"the patched pack is not right: {after.text()}")
            checked.append(after)

        written = write_in_place(
            made.container,
            made.changes,
            added,
            lambda records, undo: _manifest(made, earlier, records, undo),
            inspect=inspect,
        )
    return PatchedInPlace(
        path=path,
        before=made.report,
        changes=made.changes,
        graph_changes=made.graph_changes,
        added=(*added, *(() if earlier else (MANIFEST,))),
        written=written,
        after=checked[0],
        recovered=recovered,
    )


def undo(container: str | Path) -> str:
    """Take back the last patch in place; what was done, for a person.

    Raises ContainerError, and changes nothing, where there is nothing to take back,
    and where a file changed since that patch.
    """
    with locked(Path(container)) as root:
        return undo_last(root)


def says_the_same(earlier: Manifest | None, made: Plan) -> bool:
    """Whether the manifest of an earlier patch keeps the declaration that counts now."""
    return earlier is not None and earlier.declaration == manifest_of(made, ()).declaration


def _manifest(
    made: Plan, earlier: Manifest | None, records: tuple[FileRecord, ...], undo_by: str
) -> Manifest:
    """The manifest, with the spans of earlier patches that still stand.

    A file of which there is no hash can be verified by them alone.
    """
    manifest = replace(manifest_of(made, records), undo=undo_by)
    if earlier is None:
        return manifest
    whole = {replaced.file for replaced in manifest.replacements}
    edits = [*manifest.edits, *(e for e in earlier.edits if _stands(e, manifest, whole))]
    additions = [
        *manifest.additions,
        *(a for a in earlier.additions if _stands(a, manifest, whole)),
    ]
    return replace(
        manifest,
        edits=tuple(sorted(edits, key=lambda edit: (edit.file, edit.offset))),
        additions=tuple(sorted(additions, key=lambda added: (added.file, added.offset))),
    )


def _stands(span: EditRecord | AdditionRecord, manifest: Manifest, whole: set[str]) -> bool:
    return span.file not in whole and not any(
        edit.file == span.file
        and edit.offset < span.offset + span.length
        and span.offset < edit.offset + edit.length
        for edit in manifest.edits
    )
