"""Writes a dump: blocks of logits go to the disk as they come."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from forward.dump import DUMP, LOGITS, TOKENS, Tokens, tokens_sha256
from forward.steps import Block
from packimport import __version__
from packimport.errors import DumpError


@dataclass(frozen=True, kw_only=True, slots=True)
class Provenance:
    """What identifies a run, for dump.json.

    engine: name, version and settings of what computed the logits.
    kind:   "pack" or "checkpoint".
    path:   the pack or checkpoint as the user named it.
    files:  name ─▶ (bytes, sha256) of every file that was read.
    """

    engine: Mapping[str, object]
    kind: str
    path: str
    files: Mapping[str, tuple[int, str]]


def write_dump(
    folder: Path,
    tokens: Tokens,
    blocks: Iterable[Block],
    provenance: Callable[[], Provenance],
    chunk: int | None = None,
) -> tuple[int, int]:
    """Write the blocks of a run over `tokens` into `folder`; returns [positions, vocab].

    The files are written to a sibling that is renamed at the end, so `folder` is
    whole or absent. They are not synced to the disk: a dump is made again in a
    minute, and `read_dump` refuses a file that is too short.
    `provenance` is asked last: it may wait for hashes that are still in the making.
    """
    check_free(folder)
    with _partial(folder) as partial:
        rows, vocab, prefill = _write_logits(partial / LOGITS, len(tokens), blocks)
        if rows != len(tokens):
            raise DumpError(f"the run gave {rows} rows of logits for {len(tokens)} tokens")
        np.save(partial / TOKENS, tokens.astype("<i8"), allow_pickle=False)
        steps = {"prefill": prefill, "decode": rows - prefill, "chunk": chunk}
        document = _document(provenance(), tokens, steps, (rows, vocab))
        text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        (partial / DUMP).write_text(text, encoding="utf-8", newline="\n")
    return rows, vocab


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


@contextlib.contextmanager
def _partial(folder: Path) -> Iterator[Path]:
    """A sibling that becomes `folder` when the block ends well, and vanishes otherwise."""
    partial = folder.absolute().with_name(f".{folder.name}.{secrets.token_hex(4)}.partial")
    partial.mkdir()
    try:
        yield partial
        check_free(folder)
        partial.rename(folder.absolute())
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _write_logits(path: Path, positions: int, blocks: Iterable[Block]) -> tuple[int, int, int]:
    """Stream the blocks; returns rows written, vocab, and rows of prefill."""
    rows = vocab = prefill = 0
    with path.open("wb") as file:
        for block in blocks:
            if not rows:
                vocab = block.logits.shape[1]
                _check_disk(path, 4 * positions * vocab)
                header = {"descr": "<f4", "fortran_order": False, "shape": (positions, vocab)}
                np.lib.format.write_array_header_1_0(file, header)
            file.write(np.ascontiguousarray(block.logits, dtype="<f4").data)
            rows += len(block.logits)
            prefill += 0 if block.step.decode else len(block.logits)
    return rows, vocab, prefill


def _check_disk(path: Path, needed: int) -> None:
    free = shutil.disk_usage(path.parent).free
    if free < needed:
        raise DumpError(
            "the disk is too full for these logits",
            place=str(path.parent.parent),
            found=f"{free} bytes free",
            allowed=f"{needed} bytes or more",
            fix="Name a folder on another disk, or dump fewer tokens.",
        )


def _document(
    provenance: Provenance, tokens: Tokens, steps: Mapping[str, object], shape: tuple[int, int]
) -> dict[str, object]:
    """dump.json: nothing in it changes between two equal runs."""
    files = [
        {"name": name, "bytes": size, "sha256": digest}
        for name, (size, digest) in sorted(provenance.files.items())
    ]
    return {
        "schema_version": 1,
        "tool": {"name": "forward-serve", "version": __version__},
        "engine": dict(provenance.engine),
        "source": {"kind": provenance.kind, "path": provenance.path, "files": files},
        "tokens": {"count": len(tokens), "sha256": tokens_sha256(tokens)},
        "steps": dict(steps),
        "logits": {"dtype": "float32", "shape": list(shape)},
    }
