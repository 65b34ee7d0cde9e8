"""Dump: the logits of one run, in memory or in a folder.

A folder holds these files, and numpy alone reads all but the last:

    logits.npy     float32 or float16 [rows, vocab]; row i follows the tokens 0 … positions[i]
    tokens.npy     int64 [tokens]
    positions.npy  int64 [rows], ascending, where not every position has a row
    ids.npy        int32 [rows, k] of a top-k dump: whose logits the row holds, largest first
    tail.npy       float64 [rows] of a top-k dump: log Σ exp of the logits left out
    dump.json      what made it (schemas/dump.schema.json)
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import numpy.typing as npt

from forward.npy import Logits, NpyRows, open_rows, read_array
from packimport.errors import DumpError
from packimport.pack.documents import load_json, validate

SCHEMA = "dump.schema.json"
# NpyRows is the usual kind of Rows; it is named here for who makes a Dump by hand.
__all__ = ["DUMP", "IDS", "KLD_BASE", "LOGITS", "POSITIONS", "SCHEMA", "TAIL", "TOKENS"]
__all__ += [
    "Dump",
    "Logits",
    "NpyRows",
    "Rows",
    "Tokens",
    "Tops",
    "read_dump",
    "rows_at",
    "tokens_sha256",
]

# What a dump says of itself that was imported from such a file.
KLD_BASE = "llama.cpp kl-divergence-base"
LOGITS, TOKENS, DUMP = "logits.npy", "tokens.npy", "dump.json"
POSITIONS, IDS, TAIL = "positions.npy", "ids.npy", "tail.npy"

Tokens = npt.NDArray[np.int64]


class Rows(Protocol):
    """Logits that are read by rows: an array, or a file that is never loaded whole."""

    @property
    def shape(self) -> tuple[int, ...]:
        """[positions, vocab]."""

    def __getitem__(self, rows: slice, /) -> Logits:
        """The logits of a range of positions."""


@dataclass(frozen=True, slots=True, eq=False)
class Tops:
    """What a top-k dump knows beside its logits.

    vocab: entries of a whole row. ids: int32 [rows, k]. tail: float64 [rows].
    """

    vocab: int
    ids: npt.NDArray[np.int32]
    tail: npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Dump:
    """Tokens and the logits after each of them.

    name:    what messages call it: its folder, or a word.
    tokens:  int64 [tokens].
    logits:  float32 [rows, vocab], or [rows, k] where `tops` is given.
    prefill: how many positions ran as prefill; the others ran one at a time.
    at:      int64 [rows], the positions of the rows, ascending; None: all, in order.
    tops:    of a top-k dump, else None.
    normal:  whether the rows hold log p in place of logits, as llama.cpp's base does.
    edges:   the positions at which the run went over to another RoPE table.
    """

    name: str
    tokens: Tokens
    logits: Rows
    prefill: int
    at: Tokens | None = None
    tops: Tops | None = None
    edges: tuple[int, ...] = ()
    normal: bool = False

    @property
    def positions(self) -> int:
        """How many rows the logits have."""
        return self.logits.shape[0]

    @property
    def vocab(self) -> int:
        """Entries of a whole row."""
        return self.logits.shape[1] if self.tops is None else self.tops.vocab

    def where(self) -> Tokens:
        """int64 [rows]: the position of each row."""
        return np.arange(self.positions) if self.at is None else self.at

    def following(self, positions: Tokens) -> Tokens:
        """The token after each position, −1 where none is known; int64."""
        return np.append(self.tokens, -1)[positions + 1]


def read_dump(folder: Path | str) -> Dump:
    """The dump in `folder`; its tokens are read and checked, its logits stay on disk."""
    folder = Path(folder)
    if not (folder / DUMP).is_file():
        raise DumpError(
            f"no dump: there is no {DUMP} in it" if folder.is_dir() else "no such dump",
            place=str(folder),
            allowed="a folder that forward-serve --dump-logits wrote",
        )
    document = load_json(folder / DUMP, str(folder / DUMP))
    validate(document, SCHEMA, str(folder / DUMP))
    stated = cast("dict[str, dict[str, Any]]", document)  # the schema has checked it
    tokens = _checked(folder / TOKENS, stated["tokens"]["sha256"])
    form = stated["logits"]
    at = _checked(folder / POSITIONS, form["positions"]) if "positions" in form else None
    logits = open_rows(folder / LOGITS)
    rows = len(tokens) if at is None else len(at)
    if list(logits.shape) != form["shape"] or logits.shape[0] != rows:
        raise DumpError(
            "the logits have another shape than dump.json and tokens.npy say",
            place=str(folder / LOGITS),
            found=list(logits.shape),
            allowed=f"{form['shape']}, for {rows} rows",
            fix="Make the dump again.",
        )
    steps = stated["steps"]
    if steps["prefill"] + steps["decode"] != len(tokens):
        raise DumpError(
            "the steps are not those of the tokens",
            place=f"{folder / DUMP}#/steps",
            found=f"{steps['prefill']} and {steps['decode']}",
            allowed=f"prefill and decode that add up to {len(tokens)}",
            fix="Make the dump again.",
        )
    if at is not None and (at[0] < 0 or at[-1] >= len(tokens) or (np.diff(at) < 1).any()):
        raise DumpError("not ascending positions of tokens", place=str(folder / POSITIONS))
    return Dump(
        name=str(folder),
        tokens=tokens,
        logits=logits,
        prefill=steps["prefill"],
        at=at,
        tops=_read_tops(folder, logits.shape, form["vocab"]) if "vocab" in form else None,
        edges=tuple(steps.get("edges", ())),
        normal=stated["engine"].get("format") == KLD_BASE,
    )


def _checked(path: Path, digest: str) -> Tokens:
    values = read_array(path, "<i8", 1).astype(np.int64, copy=False)
    if tokens_sha256(values) != digest:
        raise DumpError(
            f"{path.name} is not the file that dump.json describes",
            place=str(path),
            fix="Make the dump again.",
        )
    return values


def _read_tops(folder: Path, shape: tuple[int, int], vocab: int) -> Tops:
    ids = read_array(folder / IDS, "<i4", 2).astype(np.int32, copy=False)
    tail = read_array(folder / TAIL, "<f8", 1).astype(np.float64, copy=False)
    ordered = np.sort(ids, axis=1)
    if (
        ids.shape != shape
        or tail.shape != shape[:1]
        or np.isnan(tail).any()
        or (ordered[:, 0] < 0).any()
        or (ordered[:, -1] >= vocab).any()
        or (np.diff(ordered, axis=1) == 0).any()
    ):
        raise DumpError(
            "the ids or the tail are not those of these logits",
            place=str(folder / IDS),
            found=f"ids {list(ids.shape)}, tail {list(tail.shape)}",
            allowed=f"ids {list(shape)}, distinct and below {vocab}, and a tail for each row",
            fix="Make the dump again.",
        )
    return Tops(vocab, ids, tail)


def rows_at(dump: Dump, positions: Tokens) -> Logits:
    """The logits at positions that follow each other, float32 [positions, entries]."""
    row = int(np.searchsorted(dump.where(), positions[0]))
    return dump.logits[row : row + len(positions)]


def tokens_sha256(tokens: Tokens) -> str:
    """sha256 of the token ids as little-endian int64."""
    return hashlib.sha256(tokens.astype("<i8").tobytes()).hexdigest()
