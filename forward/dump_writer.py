"""Writes a dump: blocks of logits go to the disk as they come."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from forward.dump import DUMP, POSITIONS, TOKENS, Tokens, tokens_sha256
from forward.form import ALL, Form
from forward.sink import Sink, naming, row_files
from forward.steps import Block, Step
from forward.unfinished import NOTHING, Done, Identity, done_steps, unfinished
from packimport.errors import DumpError
from packimport.pack.signals import interruptible
from packimport.version import __version__


@dataclass(frozen=True, kw_only=True, slots=True)
class Provenance:
    """What identifies a run, for dump.json.

    engine: name, version and settings of what computed the logits.
    kind:   "pack", "checkpoint" or "file".
    path:   the pack, checkpoint or file as the user named it.
    files:  name ─▶ (bytes, sha256) of every file that was read.
    edges:  the positions at which the run goes over to another RoPE table.
    batch:  how many prompts ran at once, where that was asked for.
    """

    engine: Mapping[str, object]
    kind: str
    path: str
    files: Mapping[str, tuple[int, str]]
    edges: tuple[int, ...] = ()
    batch: int | None = None


def write_dump(
    folder: Path,
    tokens: Tokens,
    blocks: Iterable[Block],
    provenance: Callable[[], Provenance],
    chunk: int | None = None,
    *,
    form: Form = ALL,
) -> tuple[int, int]:
    """Write the blocks of a run over `tokens` into `folder`; returns [rows, entries].

    The files are written to a sibling that is renamed at the end, so `folder` is
    whole or absent. They are not synced to the disk: a dump is made again in a
    minute, and `read_dump` refuses a file that is too short.
    `provenance` is asked last: it may wait for hashes that are still in the making.
    """
    with unfinished(folder) as partial, interruptible():
        return _fill(partial, tokens, blocks, provenance, chunk=chunk, form=form)


def resume_dump(
    folder: Path,
    tokens: Tokens,
    *,
    steps: Sequence[Step],
    blocks: Callable[[int], Iterable[Block]],
    provenance: Callable[[], Provenance],
    chunk: int | None,
    identity: Identity,
    form: Form = ALL,
) -> tuple[int, int]:
    """The same; after a kill it goes on behind the last step whose rows are whole.

    steps:    those of the run. blocks: given how many of them are done, the others' blocks.
    identity: what tells this run from others; see `unfinished`.
    """
    with unfinished(folder, identity) as partial:
        kept = form.kept(len(tokens))
        files = [partial / name for name in row_files(form)]
        # dump.json of a top-k dump says how many entries a whole row has: one is run again.
        most = len(kept) if form.top_k is None else len(kept) - 1
        done = done_steps(files, steps, kept, most)
        left = blocks(done.steps)
        return _fill(partial, tokens, left, provenance, chunk=chunk, form=form, done=done)


def _fill(
    partial: Path,
    tokens: Tokens,
    blocks: Iterable[Block],
    provenance: Callable[[], Provenance],
    *,
    chunk: int | None,
    form: Form,
    done: Done = NOTHING,
) -> tuple[int, int]:
    """Write the files of a dump; its first rows may be there already."""
    kept = form.kept(len(tokens))
    with Sink(partial, kept, form, done) as sink:
        for block in blocks:
            sink.add(block)
    if sink.rows != len(kept):
        raise DumpError(f"the run gave {sink.rows} rows of logits for {len(kept)} tokens")
    _save(partial / TOKENS, tokens, "<i8")
    if form.positions is not None:
        _save(partial / POSITIONS, kept, "<i8")
    steps: dict[str, object] = {
        "prefill": len(tokens) - sink.decoded,
        "decode": sink.decoded,
        "chunk": chunk,
    }
    document = _document(provenance(), tokens, steps, _form(form, kept, sink))
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    with naming(partial / DUMP):
        (partial / DUMP).write_text(text, encoding="utf-8", newline="\n")
    return sink.rows, sink.entries


def _save(path: Path, values: npt.NDArray[np.generic], dtype: str) -> None:
    with naming(path):
        np.save(path, values.astype(dtype), allow_pickle=False)


def _form(form: Form, kept: Tokens, sink: Sink) -> dict[str, object]:
    """What dump.json says of the logits; keys that a plain dump does not need are left out."""
    value: dict[str, object] = {"dtype": form.dtype, "shape": [sink.rows, sink.entries]}
    if form.positions is not None:
        value["positions"] = tokens_sha256(kept)
    if form.top_k is not None:
        value["vocab"] = sink.vocab
    return value


def _document(
    provenance: Provenance,
    tokens: Tokens,
    steps: Mapping[str, object],
    logits: Mapping[str, object],
) -> dict[str, object]:
    """dump.json: nothing in it changes between two equal runs."""
    files = [
        {"name": _text(name), "bytes": size, "sha256": digest}
        for name, (size, digest) in sorted(provenance.files.items())
    ]
    edges = {"edges": list(provenance.edges)} if provenance.edges else {}
    batch = {} if provenance.batch is None else {"batch": provenance.batch}
    return {
        "schema_version": 1,
        "tool": {"name": "forward-serve", "version": __version__},
        "engine": {key: _text(value) for key, value in provenance.engine.items()},
        "source": {"kind": provenance.kind, "path": _text(provenance.path), "files": files},
        "tokens": {"count": len(tokens), "sha256": tokens_sha256(tokens)},
        "steps": {**steps, **batch, **edges},
        "logits": dict(logits),
    }


def _text(value: object) -> object:
    """A value; of the name of a file that is no Unicode its bytes become \\udcXX."""
    if not isinstance(value, str):
        return value
    return value.encode(errors="backslashreplace").decode()
