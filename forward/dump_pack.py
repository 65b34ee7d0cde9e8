"""Dump a pack: its logits over given tokens, to a folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from forward.dump import Tokens
from forward.dump_writer import Provenance, check_free, write_dump
from forward.genai_config import Decoder
from forward.limits import check_length
from forward.prompt import check_tokens
from forward.runner import open_runner
from forward.session import OPTIMIZATION, PROVIDER
from forward.sources import files_read, pack_hashes
from forward.steps import Block, Step
from packimport.pack.container import Container

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
    threads: int | None = None,
    watch: Watch = lambda _steps, blocks: blocks,
) -> tuple[int, int]:
    """Run `tokens`, int64 [count], through a pack into a new dump; returns [positions, vocab].

    The files are hashed while onnxruntime loads and runs them.
    """
    check_free(folder)
    check_tokens(tokens, decoder.vocab_size, "the pack")
    check_length(container, decoder, len(tokens))
    with pack_hashes(container, files_read(container, decoder)) as hashes:
        runner = open_runner(container, decoder, threads)
        steps = runner.steps(len(tokens), decode, chunk)

        def provenance() -> Provenance:
            engine = {
                "name": "onnxruntime",
                "version": runner.version,
                "provider": PROVIDER,
                "graph_optimization": OPTIMIZATION,
                "threads": threads,
            }
            return Provenance(engine=engine, kind="pack", path=str(container.path), files=hashes())

        blocks = watch(steps, runner.blocks(tokens, steps))
        width = 1 if runner.last_only else chunk
        return write_dump(folder, tokens, blocks, provenance, width)
