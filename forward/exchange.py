"""Exchange: dumps from and to the files of others."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from forward.dump import KLD_BASE, Dump, Logits, Tokens, read_dump, rows_at
from forward.dump_writer import Provenance, write_dump
from forward.form import ALL, Form
from forward.kld_base import KldBase, read_base, scored, write_base
from forward.npy import NpyRows, open_rows
from forward.prompt import check_tokens
from forward.scores import BLOCK, blocks
from forward.sink import naming
from forward.sources import file_hashes
from forward.steps import Block, Step
from forward.unfinished import check_free, unfinished
from packimport.errors import DumpError
from packimport.pack.signals import ended_by_signals, interruptible


def import_npy(path: Path, tokens: Tokens, out: Path, form: Form = ALL) -> tuple[int, int]:
    """A dump of float32 or float16 logits, [tokens, vocab] in a .npy file; its rows and entries.

    Where `form` has positions, the file may hold the rows of those alone.
    """
    logits = open_rows(path)
    check_tokens(tokens, logits.shape[1], str(path))
    kept = form.kept(len(tokens))
    at = kept if logits.shape[0] == len(kept) else np.arange(len(tokens))
    if logits.shape[0] != len(at):
        raise DumpError(
            "the logits have another number of rows than there are tokens",
            place=str(path),
            found=logits.shape[0],
            allowed=str(len(tokens)),
            fix="Pass the tokens that were run; and --positions where not each has a row.",
        )
    with file_hashes({path.name: path}) as hashes:

        def provenance() -> Provenance:
            engine = {"name": "imported", "format": "npy"}
            return Provenance(engine=engine, kind="file", path=str(path), files=hashes())

        return write_dump(out, tokens, _npy_blocks(logits, at), provenance, form=form)


def _npy_blocks(logits: NpyRows, at: Tokens) -> Iterator[Block]:
    row = 0
    for positions in blocks(at, max(1, BLOCK // logits.shape[1])):
        step = Step(int(positions[0]), int(positions[-1]) + 1, False)
        yield Block(step, logits[row : row + len(positions)])
        row += len(positions)


def import_base(path: Path, out: Path) -> tuple[int, int]:
    """A folder of one dump for each chunk of llama.cpp's base; how many, and rows of each.

    The dumps hold log p where others hold logits: a softmax does not tell them apart.
    """
    base = read_base(path)
    check_free(out)
    for chunk in range(len(base.tokens)):
        check_tokens(base.tokens[chunk], base.vocab, str(path))
    span = scored(base.n_ctx)
    form = Form(positions=((span.start, span.stop),))
    with unfinished(out) as partial, interruptible(), file_hashes({path.name: path}) as hashes:

        def provenance() -> Provenance:
            engine = {"name": "imported", "format": KLD_BASE}
            return Provenance(engine=engine, kind="file", path=str(path), files=hashes())

        for chunk, tokens in enumerate(base.tokens):
            folder = partial / f"chunk-{chunk:04}"
            write_dump(folder, tokens, [_base_block(base, chunk)], provenance, form=form)
    return len(base.tokens), len(span)


def _base_block(base: KldBase, chunk: int) -> Block:
    span = scored(base.n_ctx)
    return Block(Step(span.start, span.stop, False), base.log_probs(chunk))


def export_base(folders: Sequence[Path], out: Path) -> tuple[int, int]:
    """llama.cpp's base of dumps, each of which is a chunk; how many chunks, and their tokens.

    Raises DumpError where the dumps differ in length or vocabulary, or lack a row.
    """
    dumps = [read_dump(folder) for folder in folders]
    for dump in dumps:
        _check_chunk(dump, dumps[0])
    check_free(out)
    tokens = np.stack([dump.tokens for dump in dumps])
    partial = out.absolute().with_name(f".{out.name}.{secrets.token_hex(4)}.partial")
    with ended_by_signals():
        try:
            with interruptible(), naming(partial), partial.open("xb") as file:
                write_base(file, tokens, dumps[0].vocab, _scored_rows(dumps))
            check_free(out)
            partial.rename(out.absolute())
        finally:
            partial.unlink(missing_ok=True)
    return tokens.shape[0], tokens.shape[1]


def _scored_rows(dumps: Sequence[Dump]) -> Iterator[Logits]:
    for dump in dumps:
        at = np.array(scored(len(dump.tokens)))
        for positions in blocks(at, max(1, BLOCK // dump.vocab)):
            yield rows_at(dump, positions)


def _check_chunk(dump: Dump, first: Dump) -> None:
    if dump.tops is not None:
        raise DumpError(
            "a base needs whole rows",
            place=dump.name,
            found=f"the {dump.logits.shape[1]} largest logits of {dump.vocab}",
            fix="Dump without --top-k.",
        )
    same = (len(first.tokens), first.vocab)
    if (len(dump.tokens), dump.vocab) != same:
        raise DumpError(
            "the chunks of a base are of one length and one vocabulary",
            place=dump.name,
            found=f"{len(dump.tokens)} tokens x {dump.vocab}",
            allowed=f"{same[0]} x {same[1]}, as in {first.name}",
        )
    needed = np.array(scored(len(dump.tokens)))
    if not needed.size or not np.isin(needed, dump.where()).all():
        raise DumpError(
            "the dump lacks rows that a base holds",
            place=dump.name,
            allowed=f"3 tokens or more, and rows {len(dump.tokens) // 2} to {len(dump.tokens) - 2}",
            fix="Dump without --positions.",
        )
