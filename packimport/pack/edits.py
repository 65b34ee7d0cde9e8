"""Edit: the replacement of one byte span of one file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from packimport.errors import ContainerError


@dataclass(frozen=True, kw_only=True, slots=True)
class Edit:
    """New bytes for a span, of the same length as the old ones.

    file:       relative to the container, with `/`.
    old_sha256: of the bytes that stood there when the edit was made; a writer
                refuses to apply it to others.
    reason:     what the bytes are, for the manifest and `--dry-run`.
    new_sha256: of the new bytes.
    """

    file: str
    offset: int
    new: bytes = field(repr=False)
    old_sha256: str
    reason: str
    new_sha256: str = field(init=False, repr=False)

    def __post_init__(self) -> None:
        # Once: it is asked for by every stage, and tables are large.
        object.__setattr__(self, "new_sha256", hashlib.sha256(self.new).hexdigest())

    @property
    def length(self) -> int:
        """Bytes replaced."""
        return len(self.new)

    @property
    def end(self) -> int:
        """The offset after the last byte replaced."""
        return self.offset + len(self.new)


def merged(edits: Iterable[Edit]) -> tuple[Edit, ...]:
    """The edits sorted by file and offset, duplicates merged.

    Two graphs, or two nodes, may share one table: the same bytes for the same
    span are one edit, with both reasons. Raises ContainerError for edits that
    overlap in any other way.
    """
    result: list[Edit] = []
    for edit in sorted(edits, key=lambda edit: (edit.file, edit.offset, edit.end, edit.reason)):
        if result and _is_same(result[-1], edit):
            result[-1] = _with_reason(result[-1], edit.reason)
        else:
            result.append(edit)
    for first, second in pairwise(result):
        if first.file == second.file and second.offset < first.end:
            raise ContainerError(
                "two edits overlap and differ",
                place=first.file,
                found=f"{_span(first)} ({first.reason}) and {_span(second)} ({second.reason})",
                fix="Two tensors share these bytes: no table can be right for both.",
            )
    return tuple(result)


def by_file(edits: Iterable[Edit], sizes: Mapping[str, int]) -> dict[str, tuple[Edit, ...]]:
    """The edits of each file, merged and in order.

    sizes: bytes of every file that may be edited. Raises ContainerError for an
    edit of another file, for one that is empty or not wholly inside its file,
    and as `merged` does.
    """
    groups: dict[str, tuple[Edit, ...]] = {}
    for edit in merged(edits):
        if edit.file not in sizes:
            raise ContainerError("an edit of a file that the pack lacks", place=edit.file)
        if edit.offset < 0 or edit.length == 0 or edit.end > sizes[edit.file]:
            raise ContainerError(
                "an edit is not inside the file",
                place=edit.file,
                found=f"{_span(edit)} ({edit.reason})",
                allowed=f"0 to {sizes[edit.file]}",
            )
        groups[edit.file] = (*groups.get(edit.file, ()), edit)
    return groups


def _is_same(first: Edit, second: Edit) -> bool:
    return (first.file, first.offset, first.old_sha256, first.new) == (
        second.file,
        second.offset,
        second.old_sha256,
        second.new,
    )


def _with_reason(edit: Edit, reason: str) -> Edit:
    reasons = edit.reason.split("; ")
    if reason in reasons:
        return edit
    return Edit(
        file=edit.file,
        offset=edit.offset,
        new=edit.new,
        old_sha256=edit.old_sha256,
        reason="; ".join([*reasons, reason]),
    )


def _span(edit: Edit) -> str:
    return f"{edit.length} bytes at offset {edit.offset}"
