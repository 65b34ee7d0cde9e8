"""Dry run: what a patch would write, without writing it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path

from packimport.errors import printable
from packimport.in_place import says_the_same
from packimport.pack.archive import opened
from packimport.pack.container import open_container
from packimport.pack.in_place import refuse_links
from packimport.pack.journal import FOLDER
from packimport.pack.manifest import MANIFEST, Manifest, read_manifest
from packimport.pack.signals import interruptible
from packimport.pack.writer import refuse_out, refuse_taken
from packimport.patching import extra_files, manifest_of, plan_for, reasons_of
from packimport.version import __version__

SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class DryRun:
    """What a patch would write. `to_dict()` is the JSON of schemas/dry_run.schema.json.

    path:    the container as the user named it.
    changes: the manifest that would be written, without its files.
    added:   names of files that the pack does not have.
    in_place: whether the pack's own files would be changed, and a journal kept.
    restated: whether the manifest that the pack has would be replaced by another.
    """

    path: str
    changes: Manifest
    added: tuple[str, ...]
    in_place: bool = False
    restated: bool = False

    def to_dict(self) -> dict[str, object]:
        """The JSON object."""
        return {
            "schema_version": SCHEMA_VERSION,
            "tool": {"name": "packimport", "version": __version__},
            "container": {"path": self.path},
            "edits": [asdict(edit) for edit in self.changes.edits],
            "additions": [asdict(addition) for addition in self.changes.additions],
            "replacements": [asdict(replaced) for replaced in self.changes.replacements],
            "graph_changes": [asdict(change) for change in self.changes.graph_changes],
            "added": list(self.added),
        }

    def text(self) -> str:
        """The dry run for a person."""
        return "\n".join(map(printable, self._lines()))

    def _lines(self) -> Iterator[str]:
        changes = self.changes
        is_right = not (changes.edits or changes.additions or changes.replacements)
        planned = "nothing to mend" if is_right else "this would be changed"
        yield f"{self.path}: dry run, nothing was written; {planned}"
        for edit, reason in zip(changes.edits, reasons_of(changes.edits), strict=True):
            yield f"  {edit.file}: {edit.length} bytes at {edit.offset}: {reason}"
            yield f"    sha256 {edit.old_sha256} becomes {edit.new_sha256}"
        for added in changes.additions:
            yield f"  {added.file}: {added.length} bytes added at {added.offset}: {added.reason}"
        for replaced in changes.replacements:
            yield f"  {replaced.file}: the graph is changed: {replaced.reason}"
        for change in changes.graph_changes:
            yield f"    {change.where}: {change.change}: {change.reason}"
        for name in self.added:
            yield f"  {name}: would be added"
        if self.restated:
            yield f"  {MANIFEST}: would be written anew"
        if self.in_place and (self.added or self.restated or not is_right):
            yield f"  {FOLDER}/: would hold the journal, for `packimport undo`"


def dry_run(
    container: Path,
    out: Path | None = None,
    config: Path | None = None,
    model: str | None = None,
    *,
    in_place: bool = False,
    bytes_only: bool = False,
) -> DryRun:
    """What a patch to `out`, or in place, would write.

    Raises what that patch would raise before it writes.
    """
    if out is not None:
        refuse_taken(out)
    # Only a folder is patched in place; an archive is unpacked to be looked at.
    source = nullcontext(open_container(container)) if in_place else opened(container)
    with source as pack, interruptible():
        made = plan_for(pack, config, model, bytes_only=bytes_only)
        added = tuple(extra_files(made, config, model))
        changes = manifest_of(made, ())
        if out is not None:
            refuse_out(made.container, out)
        if in_place:
            names = {MANIFEST}
            names |= {edit.file for edit in changes.edits}
            names |= {addition.file for addition in changes.additions}
            names |= {replaced.file for replaced in changes.replacements}
            refuse_links(made.container, sorted(names))
        earlier = read_manifest(made.container)
        is_same = in_place and not made.changes and not added and says_the_same(earlier, made)
        if earlier is None:
            added = (*added, MANIFEST)
    return DryRun(
        path=str(container),
        changes=changes,
        added=added,
        in_place=in_place,
        restated=earlier is not None and not is_same,
    )
