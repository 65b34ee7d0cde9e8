"""Sink: what a dump keeps of the blocks of a run, on its way to the disk."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from forward.dump import IDS, LOGITS, Tokens
from forward.form import Form, Kept, keep
from forward.steps import Block
from forward.unfinished import NOTHING, Done
from packimport.errors import DumpError


class Sink:
    """Takes blocks in order and writes logits.npy, and ids.npy of a top-k dump.

    rows, entries: the shape of what is written so far. vocab: of the whole rows.
    decoded: how many tokens ran one at a time. tails: of a top-k dump, block by block.
    """

    def __init__(self, folder: Path, kept: Tokens, form: Form, done: Done = NOTHING) -> None:
        """done: what of a whole dump is in the folder already; the blocks go on behind it."""
        self.decoded = done.decoded
        self.rows, self.entries, self.vocab = done.rows, done.vocab, done.vocab
        self.tails: list[npt.NDArray[np.float64]] = []
        self._folder = folder
        self._kept = kept
        self._form = form
        self._stack = contextlib.ExitStack()
        names = (LOGITS,) if form.top_k is None else (LOGITS, IDS)
        self._files: list[BinaryIO] = [
            self._stack.enter_context((folder / name).open("r+b" if done.rows else "wb"))
            for name in names
        ]
        if done.rows:
            self._files[0].truncate(done.size)
            self._files[0].seek(done.size)

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
        if not self.rows:
            self.vocab, self.entries = rows.shape[1], part.logits.shape[1]
            self._begin(part)
        with naming(self._folder / LOGITS):
            self._files[0].write(part.logits.data)
        if part.ids is not None and part.tail is not None:
            with naming(self._folder / IDS):
                self._files[1].write(part.ids.data)
            self.tails.append(part.tail)
        self.rows += len(rows)

    def _begin(self, part: Kept) -> None:
        """The headers, once the width of a row is known."""
        shape = (len(self._kept), self.entries)
        _check_disk(self._folder, part.logits.itemsize * shape[0] * shape[1])
        descriptions = (part.logits.dtype.str, "<i4")
        for file, description in zip(self._files, descriptions, strict=False):
            header = {"descr": description, "fortran_order": False, "shape": shape}
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
