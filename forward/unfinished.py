"""Unfinished: the folder in which a dump is written, and what a kill left of it.

It is a hidden sibling of the dump, and becomes the dump by a rename. Where it says
which run writes it (run.json), the same run goes on in it after a kill.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from forward.dump import Tokens
from forward.steps import Step
from packimport.errors import DocumentError, DumpError, PackimportError
from packimport.pack.documents import load_json, write_json
from packimport.pack.lock import HELD, take
from packimport.pack.signals import ended_by_signals

RUN, _LOCK = "run.json", "run.lock"
Identity = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Done:
    """How far an unfinished dump is.

    steps: of the run's, from the first. rows, entries: the logits that are kept of them,
    [rows, entries]. sizes: the bytes of each file that has such rows, with its header.
    decoded: how many tokens of those steps ran one at a time.
    """

    steps: int = 0
    rows: int = 0
    entries: int = 0
    sizes: tuple[int, ...] = ()
    decoded: int = 0


NOTHING = Done()


@contextlib.contextmanager
def unfinished(folder: Path, identity: Identity | None = None) -> Iterator[Path]:
    """A sibling that becomes `folder` when the block ends well.

    Without an identity it vanishes when the block fails or is asked to end. With one (JSON
    values that tell a run from others) only a refusal removes it: after a kill or an interrupt
    the run of the same identity gets the folder as it was left.
    Raises DumpError where `folder` is taken or its parent missing, and where
    another run has left or is writing its own.
    """
    check_free(folder)
    mark = secrets.token_hex(4) + "." if identity is None else ""
    partial = folder.absolute().with_name(f".{folder.name}.{mark}partial")
    if identity is None:
        with ended_by_signals():
            partial.mkdir()
            with _removed_after(partial, BaseException):
                yield partial
                _publish(partial, folder)
        return
    partial.mkdir(exist_ok=True)
    with _owned(partial, identity, folder), _removed_after(partial, PackimportError):
        yield partial
    for name in (RUN, _LOCK):
        (partial / name).unlink()
    _publish(partial, folder)


def _publish(partial: Path, folder: Path) -> None:
    check_free(folder)
    try:
        partial.rename(folder.absolute())
    except OSError:
        check_free(folder)  # another run was faster
        raise


def check_free(folder: Path) -> None:
    """Refuse a place that is taken, or whose parent is missing."""
    if os.path.lexists(folder):
        raise DumpError(
            "the place of the dump is taken",
            place=str(folder),
            fix="Name a folder that does not exist yet, or remove this one.",
        )
    if not folder.absolute().parent.is_dir():
        raise DumpError(
            "the folder that should hold the dump does not exist",
            place=str(folder.absolute().parent),
            fix="Make it first.",
        )


def done_steps(files: Sequence[Path], steps: Sequence[Step], kept: Tokens, most: int) -> Done:
    """The steps whose rows are whole in each of some unfinished .npy files, logits first.

    kept: int64 ascending, the positions of all rows that the files will have.
    most: no more rows than these are taken for whole.
    """
    try:
        heads = [_head(path) for path in files]
        whole = min(
            most,
            *((p.stat().st_size - h.start) // h.row for p, h in zip(files, heads, strict=True)),
        )
    except (OSError, ValueError):
        return NOTHING
    # How many rows there are after each step.
    stops = np.searchsorted(kept, [step.stop for step in steps])
    count = int(np.searchsorted(stops, whole, side="right"))
    if not count:
        return NOTHING
    rows = int(stops[count - 1])
    return Done(
        steps=count,
        rows=rows,
        entries=heads[0].entries,
        sizes=tuple(head.start + rows * head.row for head in heads),
        decoded=sum(step.stop - step.start for step in steps[:count] if step.decode),
    )


@dataclass(frozen=True, slots=True)
class _Head:
    """Of a .npy file: where its values begin, and the entries and bytes of a row."""

    start: int
    entries: int
    row: int


def _head(path: Path) -> _Head:
    with path.open("rb") as file:
        np.lib.format.read_magic(file)
        shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        entries = int(np.prod(shape[1:]))
        return _Head(file.tell(), entries, entries * dtype.itemsize)


@contextlib.contextmanager
def _removed_after(partial: Path, kind: type[BaseException]) -> Iterator[None]:
    try:
        yield
    except kind:
        shutil.rmtree(partial, ignore_errors=True)
        raise


@contextlib.contextmanager
def _owned(partial: Path, identity: Identity, folder: Path) -> Iterator[None]:
    """Hold the folder for the time of the block; it must be new, or of the same run."""
    descriptor = os.open(partial / _LOCK, os.O_RDWR | os.O_CREAT)
    try:
        try:
            take(descriptor)
        except HELD as error:
            raise DumpError(
                "another run is writing this dump",
                place=str(folder),
                fix="Wait until it has ended, or name another folder.",
            ) from error
        _check_same(partial, identity)
        yield
    finally:
        os.close(descriptor)


def _check_same(partial: Path, identity: Identity) -> None:
    path = partial / RUN
    if not path.is_file() or not path.stat().st_size:
        # Begun, or ended but for the rename: nothing says whose the other files are.
        for other in partial.iterdir():
            if other.is_dir():
                shutil.rmtree(other)
            elif other.name != _LOCK:
                other.unlink()
        write_json(path, dict(identity))
        return
    try:
        left = load_json(path)
    except DocumentError as error:  # a power cut may leave any bytes
        raise DumpError(
            "an unfinished dump is in the way, and nothing says of which run",
            place=str(partial),
            found=f"{RUN}: {error.message}",
            fix="Remove that folder.",
        ) from error
    if left != dict(identity):
        known = left if isinstance(left, dict) else {}
        raise DumpError(
            "an unfinished dump of another run is in the way",
            place=str(partial),
            found="begun with other "
            + ", ".join(key for key in identity if known.get(key) != identity[key]),
            allowed="the same pack, tokens and options",
            fix="Give the command that began it again, or remove that folder.",
        )
    # Dumps of a set on which the kill fell: each is begun again, under another name.
    for inner in partial.glob(".*.partial"):
        shutil.rmtree(inner)
