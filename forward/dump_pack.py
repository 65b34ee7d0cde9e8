"""Dump a pack: its logits over given tokens, to a folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from forward.dump import Tokens, tokens_sha256
from forward.dump_writer import Provenance, resume_dump, write_dump
from forward.form import ALL, Form
from forward.genai_config import Decoder
from forward.limits import check_length
from forward.prompt import check_tokens, of_prompt
from forward.runner import Runner, open_runner
from forward.session import OPTIMIZATION, Settings
from forward.sources import Hashes, files_read, pack_hashes, stamp
from forward.steps import Block, Step, plan
from forward.unfinished import Identity, check_free, unfinished
from packimport.pack.container import Container
from packimport.version import __version__

# Given the steps of a run and its blocks, hands the blocks on, and may show how far it is.
Watch = Callable[[Sequence[Step], Iterable[Block]], Iterable[Block]]


def dump_pack(
    container: Container,
    decoder: Decoder,
    folder: Path,
    tokens: Tokens,
    *,
    decode: int = 0,
    chunk: int | None = None,
    settings: Settings | None = None,
    form: Form = ALL,
    watch: Watch = lambda _steps, blocks: blocks,
) -> tuple[int, int]:
    """Run `tokens`, int64 [count], through a pack into a new dump; returns [positions, vocab].

    The files are hashed while onnxruntime loads and runs them. After a kill the same
    call goes on where it was; it takes files of the same size and time for the same.
    """
    check_free(folder)
    check_tokens(tokens, decoder.vocab_size, "the pack")
    edges = check_length(container, decoder, len(tokens))
    _check_plan(len(tokens), decode, form)
    with _opened(container, decoder, settings or Settings()) as job:
        steps = job.runner.steps(len(tokens), decode, chunk)
        return resume_dump(
            folder,
            tokens,
            steps=steps,
            blocks=lambda done: watch(steps, job.runner.blocks(tokens, steps, done)),
            provenance=lambda: job.provenance(edges),
            chunk=job.runner.width(chunk),
            identity=job.identity(
                tokens=tokens_sha256(tokens),
                decode=decode,
                chunk=job.runner.width(chunk),
                form=form.to_json(),
            ),
            form=form,
        )


def dump_prompts(
    container: Container,
    decoder: Decoder,
    folder: Path,
    prompts: Sequence[Tokens],
    *,
    decode: int = 0,
    chunk: int | None = None,
    batch: int | None = None,
    settings: Settings | None = None,
    form: Form = ALL,
) -> None:
    """Run every prompt into a dump of its own: `folder`/00000, `folder`/00001 and so on.

    batch: how many run at once, whole; None runs them one by one.
    `folder` is whole or absent, and after a kill the same call goes on, as `dump_pack` does.
    """
    check_free(folder)
    for index, tokens in enumerate(prompts):
        with of_prompt(index):
            check_tokens(tokens, decoder.vocab_size, "the pack")
            check_length(container, decoder, len(tokens))
            _check_plan(len(tokens), decode, form)
    with _opened(container, decoder, settings or Settings()) as job:
        runner = job.runner
        size = batch or 1
        groups = [prompts[first : first + size] for first in range(0, len(prompts), size)]
        if batch is not None:
            for group in groups:
                runner.check_batch(group)
        identity = job.identity(
            tokens=[tokens_sha256(tokens) for tokens in prompts],
            decode=decode,
            chunk=runner.width(chunk),
            batch=batch,
            form=form.to_json(),
        )
        with unfinished(folder, identity) as place:
            for number, group in enumerate(groups):
                parts = [place / f"{size * number + index:05d}" for index in range(len(group))]
                if all(part.exists() for part in parts):
                    continue
                for part, tokens, blocks in zip(
                    parts, group, job.blocks(group, decode, chunk, batch), strict=True
                ):
                    if not part.exists():
                        edges = check_length(container, decoder, len(tokens))
                        width = None if batch else runner.width(chunk)
                        provenance = partial(job.provenance, edges, batch and len(group))
                        write_dump(part, tokens, blocks, provenance, width, form=form)


def _check_plan(count: int, decode: int, form: Form) -> None:
    """Refuse what does not fit `count` tokens before anything is loaded or written."""
    plan(count, decode)
    form.kept(count)


@dataclass(frozen=True, slots=True)
class _Job:
    """An open pack whose files are being hashed."""

    container: Container
    runner: Runner
    settings: Settings
    names: tuple[str, ...]
    hashes: Callable[[], Hashes]

    @property
    def engine(self) -> dict[str, object]:
        return {
            "name": "onnxruntime",
            "version": self.runner.version,
            "provider": self.runner.provider,
            "graph_optimization": OPTIMIZATION,
            "threads": self.settings.threads,
        }

    def provenance(self, edges: tuple[int, ...], batch: int | None = None) -> Provenance:
        return Provenance(
            engine=self.engine,
            kind="pack",
            path=str(self.container.path),
            files=self.hashes(),
            edges=edges,
            batch=batch,
        )

    def identity(self, **plan: object) -> Identity:
        return {
            "tool": __version__,
            "engine": self.engine,
            # The order of sums in onnxruntime depends on how many threads there are.
            "processors": os.cpu_count(),
            "files": {name: stamp(self.container.resolve(name)) for name in self.names},
            **plan,
        }

    def blocks(
        self, prompts: Sequence[Tokens], decode: int, chunk: int | None, batch: int | None
    ) -> Iterator[Iterable[Block]]:
        """The blocks of each prompt."""
        if batch is None:
            for tokens in prompts:
                yield self.runner.blocks(tokens, self.runner.steps(len(tokens), decode, chunk))
            return
        for rows in self.runner.batch(prompts):
            yield [Block(Step(0, len(rows), False), rows)]


@contextmanager
def _opened(container: Container, decoder: Decoder, settings: Settings) -> Iterator[_Job]:
    names = files_read(container, decoder)
    with pack_hashes(container, names) as hashes:
        runner = open_runner(container, decoder, settings)
        yield _Job(container, runner, settings, names, hashes)
