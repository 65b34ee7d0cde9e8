"""Verification: the files of a container held against its manifest."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from packimport.errors import ContainerError, printable
from packimport.pack.container import Container
from packimport.pack.digests import CHUNK, sha256_of_files
from packimport.pack.faults import faults
from packimport.pack.manifest import MANIFEST, FileRecord, Manifest, read_manifest
from packimport.pack.progress import OnProgress, Progress, run

SCHEMA_VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Verification:
    """How the files of a container differ from its manifest; names, sorted.

    unhashed: files of which the manifest has no sha256, because a patch in place
              does not read them: their size fits, and the spans that it wrote.
    """

    extra: tuple[str, ...]
    missing: tuple[str, ...]
    changed: tuple[str, ...]
    unhashed: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether nothing differs."""
        return not (self.extra or self.missing or self.changed)

    @property
    def exit_code(self) -> int:
        """0 where nothing differs, else 1."""
        return 0 if self.ok else 1

    def to_dict(self) -> dict[str, object]:
        """The JSON of schemas/verification.schema.json."""
        return {
            "schema_version": SCHEMA_VERSION,
            "verdict": "ok" if self.ok else "mismatch",
            "extra": list(self.extra),
            "missing": list(self.missing),
            "changed": list(self.changed),
            "unhashed": list(self.unhashed),
        }

    def text(self) -> str:
        """The verification for a person."""
        return "\n".join(map(printable, self._lines()))

    def _lines(self) -> Iterator[str]:
        if not self.ok:
            yield "the files differ"
        elif not self.unhashed:
            yield "every file is as the manifest says"
        else:
            files = "1 file" if len(self.unhashed) == 1 else f"{len(self.unhashed)} files"
            yield (
                f"nothing differs, as far as is known: of {files}"
                " the manifest has the size only (a patch in place reads no weight)"
            )
        for what, names in (
            ("extra", self.extra),
            ("missing", self.missing),
            ("changed", self.changed),
            ("not hashed", self.unhashed),
        ):
            yield from (f"  {what:<12}{name}" for name in names)
        if self.unhashed:
            yield "  Of these the spans that the patch wrote were hashed, not the rest."


def verify_container(container: Container, on_progress: OnProgress | None = None) -> Verification:
    """The files of `container` held against its own manifest.

    Raises ContainerError where there is none, DocumentError where it is not valid.
    """
    manifest = read_manifest(container)
    if manifest is None:
        raise ContainerError(
            "there is no manifest to verify against",
            place=MANIFEST,
            fix="Only a pack that packimport wrote has one.",
        )
    return verify(container, manifest, on_progress)


def verify(
    container: Container, manifest: Manifest, on_progress: OnProgress | None = None
) -> Verification:
    """The files of `container` held against `manifest`; files of equal size are hashed."""
    recorded = {file.name: file for file in manifest.files}
    found = set(container.files) - {MANIFEST}
    same_size = [
        recorded[name]
        for name in sorted(found & recorded.keys())
        if container.size(name) == recorded[name].size
    ]
    hashed = {file.name: file.sha256 for file in same_size if file.sha256 is not None}
    digests = sha256_of_files(container, list(hashed), on_progress)
    good = {name for name, digest in digests.items() if digest == hashed[name]}
    unhashed = [file for file in same_size if file.sha256 is None]
    untouched = _with_their_spans(container, manifest, unhashed, on_progress)
    return Verification(
        extra=tuple(sorted(found - recorded.keys())),
        missing=tuple(sorted(recorded.keys() - found)),
        changed=tuple(sorted((found & recorded.keys()) - good - untouched)),
        unhashed=tuple(sorted(untouched)),
    )


def _with_their_spans(
    container: Container,
    manifest: Manifest,
    files: Sequence[FileRecord],
    on_progress: OnProgress | None,
) -> set[str]:
    """Those of `files` in which every span is the one that was written."""
    names = {file.name for file in files}
    spans = [
        *((edit.file, edit.offset, edit.length, edit.new_sha256) for edit in manifest.edits),
        *((added.file, added.offset, added.length, added.sha256) for added in manifest.additions),
    ]
    wanted = [span for span in spans if span[0] in names]
    progress = Progress(sum(length for _, _, length, _ in wanted))

    def is_there(span: tuple[str, int, int, str]) -> bool:
        name, offset, length, sha256 = span
        if offset + length > container.size(name):
            return False
        digest = hashlib.sha256()
        data = container.span(name, offset, length)
        with faults(name):
            for start in range(0, length, CHUNK):
                digest.update(data[start : start + CHUNK])
                progress.add(len(data[start : start + CHUNK]))
        return digest.hexdigest() == sha256

    right = run(is_there, wanted, progress, on_progress if wanted else None)
    return names - {span[0] for span, there in zip(wanted, right, strict=True) if not there}
