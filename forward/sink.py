"""Sink: what a dump keeps of the blocks of a run, on its way to the disk."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from forward.dump import IDS, LOGITS, TAIL, Tokens
from forward.form import Form, keep
from forward.steps import Block
from forward.unfinished import NOTHING, Done
from packimport.errors import DumpError


def row_files(form: Form) -> tuple[str, ...]:
    """The files that get a row for each position that is kept."""
    return (LOGITS,) if form.top_k is None else (LOGITS, IDS, TAIL)


class Sink:
    """Takes blocks in order and writes logits.npy, and ids.npy and tail.npy of a top-k dump.

    rows, entries: the shape of what is written so far. vocab: of the whole rows.
    decoded: how many tokens ran one at a time.
    """

    def __init__(self, folder: Path, kept: Tokens, form: Form, done: Done = NOTHING) -> None:
        """done: what of the dump is in the folder already; the blocks go on behind it."""
        self.decoded = done.decoded
        self.rows, self.entries, self.vocab = done.rows, done.entries, done.entries
        self._folder = folder
        self._kept = kept
        self._form = form
        self._stack = contextlib.ExitStack()
        self._files: list[tuple[Path, BinaryIO]] = [
            (path, self._stack.enter_context(path.open("r+b" if done.rows else "wb")))
            for path in (folder / name for name in row_files(form))
        ]
        if done.rows:
            for (_, file), size in zip(self._files, done.sizes, strict=True):
                file.truncate(size)
                file.seek(size)

    def add(self, block: Block) -> None:
        """Write what is kept of a block."""
        self.decoded += len(block.logits) if block.step.decode else 0
        rows, first = block.logits, block.step.start
        if self._form.positions is not None:
            low, high = np.searchsorted(self._kept, (first, block.step.stop))
            if low == high:
                return
            rows, first = rows[self._kept[low:high] - first], int(self._kept[low])
        part = keep(rows, self._form, first)
        self.vocab = rows.shape[1]
        arrays = [array for array in (part.logits, part.ids, part.tail) if array is not None]
        if not self.rows:
            self.entries = part.logits.shape[1]
            self._begin(arrays)
        for (path, file), array in zip(self._files, arrays, strict=True):
            with naming(path):
                file.write(array.data)
                if len(arrays) > 1:
                    file.flush()  # short rows: a kill leaves as many in each file
        self.rows += len(rows)

    def _begin(self, arrays: Sequence[npt.NDArray[Any]]) -> None:
        """The headers, once the width of a row is known."""
        rows = len(self._kept)
        row = sum(array[0].nbytes for array in arrays)
        _check_disk(self._folder, rows * row)
        for (_, file), array in zip(self._files, arrays, strict=True):
            shape = (rows, *array.shape[1:])
            header = {"descr": array.dtype.str, "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)

    def __enter__(self) -> Sink:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with naming(self._folder / LOGITS):
            self._stack.close()


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Let an error of writing name the file, which write and close leave out."""
    try:
        yield
    except OSError as error:
        raise OSError(
            error.errno, error.strerror or str(error), error.filename or str(path)
        ) from error


def _check_disk(folder: Path, needed: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise DumpError(
            "the disk is too full for these logits",
            place=str(folder.parent),
            found=f"{free} bytes free",
            allowed=f"{needed} bytes or more",
            fix="Name a folder on another disk, or dump fewer tokens.",
        )
