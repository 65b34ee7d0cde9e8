"""Dump: the logits of one run, in memory or in a folder.

A folder holds three files, and numpy alone reads the first two:

    logits.npy   float32 [positions, vocab]; row i follows the tokens 0 … i
    tokens.npy   int64 [positions]
    dump.json    what made it (schemas/dump.schema.json)
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt

from packimport.errors import DumpError
from packimport.pack.documents import load_json, validate

SCHEMA = "dump.schema.json"
LOGITS, TOKENS, DUMP = "logits.npy", "tokens.npy", "dump.json"

Tokens = npt.NDArray[np.int64]
Logits = npt.NDArray[np.float32]


class Rows(Protocol):
    """Logits that are read by rows: an array, or a file that is never loaded whole."""

    @property
    def shape(self) -> tuple[int, ...]:
        """[positions, vocab]."""

    def __getitem__(self, rows: slice, /) -> Logits:
        """The logits of a range of positions."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Dump:
    """Tokens and the logits after each of them.

    name:    what messages call it: its folder, or a word.
    tokens:  int64 [positions].
    logits:  float32 [positions, vocab].
    prefill: how many positions ran as prefill; the others ran one at a time.
    """

    name: str
    tokens: Tokens
    logits: Rows
    prefill: int

    @property
    def positions(self) -> int:
        """How many rows the logits have."""
        return self.logits.shape[0]

    @property
    def vocab(self) -> int:
        """Entries of a row."""
        return self.logits.shape[1]


@dataclass(frozen=True, slots=True)
class NpyRows:
    """The rows of a float32 .npy file, read where they are asked for.

    Read and not mapped: the pages of a mapped file count as the process's memory.
    """

    path: Path
    shape: tuple[int, int]
    offset: int

    def __getitem__(self, rows: slice, /) -> Logits:
        """float32 [stop − start, vocab]."""
        start, stop, _ = rows.indices(self.shape[0])
        width = self.shape[1]
        flat = np.fromfile(
            self.path,
            dtype="<f4",
            count=(stop - start) * width,
            offset=self.offset + 4 * start * width,
        )
        return flat.reshape(stop - start, width).astype(np.float32, copy=False)


def read_dump(folder: Path | str) -> Dump:
    """The dump in `folder`; its tokens are read and checked, its logits stay on disk."""
    folder = Path(folder)
    if not folder.is_dir():
        raise DumpError(
            "no such dump",
            place=str(folder),
            allowed="a folder that forward-serve --dump-logits wrote",
        )
    document = load_json(folder / DUMP, str(folder / DUMP))
    validate(document, SCHEMA, str(folder / DUMP))
    stated = cast("dict[str, dict[str, object]]", document)  # the schema has checked it
    tokens = _read_tokens(folder / TOKENS)
    if tokens_sha256(tokens) != stated["tokens"]["sha256"]:
        raise DumpError(
            "tokens.npy is not the file that dump.json describes",
            place=str(folder / TOKENS),
            fix="Make the dump again.",
        )
    logits = _open_logits(folder / LOGITS)
    if list(logits.shape) != stated["logits"]["shape"] or logits.shape[0] != len(tokens):
        raise DumpError(
            "the logits have another shape than dump.json and tokens.npy say",
            place=str(folder / LOGITS),
            found=list(logits.shape),
            allowed=f"{stated['logits']['shape']}, for {len(tokens)} tokens",
            fix="Make the dump again.",
        )
    prefill = stated["steps"]["prefill"]
    assert isinstance(prefill, int)
    return Dump(name=str(folder), tokens=tokens, logits=logits, prefill=prefill)


def tokens_sha256(tokens: Tokens) -> str:
    """sha256 of the token ids as little-endian int64."""
    return hashlib.sha256(tokens.astype("<i8").tobytes()).hexdigest()


def _read_tokens(path: Path) -> Tokens:
    try:
        tokens = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DumpError(f"not a readable .npy file: {error}", place=str(path)) from error
    if not isinstance(tokens, np.ndarray) or tokens.dtype != np.dtype("<i8") or tokens.ndim != 1:
        raise DumpError("not an int64 array of one dimension", place=str(path))
    return tokens.astype(np.int64, copy=False)


def _open_logits(path: Path) -> NpyRows:
    try:
        with path.open("rb") as file:
            if np.lib.format.read_magic(file) != (1, 0):
                raise ValueError("a header of another version than 1.0")
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
            offset = file.tell()
        size = path.stat().st_size
    except (OSError, ValueError, EOFError) as error:
        raise DumpError(f"not a readable .npy file: {error}", place=str(path)) from error
    if dtype != np.dtype("<f4") or fortran or len(shape) != 2 or 0 in shape:
        raise DumpError(
            "not an array of logits",
            place=str(path),
            found=f"{dtype} {list(shape)}",
            allowed="float32 [positions, vocab] in C order",
        )
    if size != offset + 4 * shape[0] * shape[1]:
        raise DumpError(
            "the file is not as long as its header says",
            place=str(path),
            found=f"{size} bytes",
            allowed=f"{offset + 4 * shape[0] * shape[1]} bytes",
            fix="Make the dump again.",
        )
    return NpyRows(path, (shape[0], shape[1]), offset)
