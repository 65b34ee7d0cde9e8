"""Runner: tokens through a graph, step by step, as blocks of logits."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from os import PathLike

import numpy as np
import numpy.typing as npt

from forward import ryzen_ai
from forward.dump import Dump, Tokens
from forward.feeds import Feeds, arrays_of
from forward.genai_config import Decoder, read_decoder
from forward.kv_cache import GrowingCache, SharedCache, find_slots
from forward.limits import check_length
from forward.ports import check_ports
from forward.prompt import check_tokens
from forward.run import Run
from forward.ryzen_ai import RyzenAI
from forward.session import PROVIDER, Session, Settings, open_session
from forward.sources import files_read
from forward.states import find_states
from forward.steps import Block, Step, plan
from forward.wiring import Wiring, read_wiring
from packimport.errors import GraphError
from packimport.pack.container import Container, open_container

# Tokens of a step where the graph does not look at the length: as fast as more of them,
# and the logits of a step and the scores of its attention take little memory.
CHUNK = 256


class Runner:
    """A decoder that is ready to run.

    Raises GraphError for inputs that it does not know how to feed.
    """

    def __init__(self, session: Session, decoder: Decoder, wiring: Wiring) -> None:
        self._session = session
        self._decoder = decoder
        self._slots = find_slots(session, decoder, wiring)
        self._states = find_states(session, decoder, wiring)
        self.wiring = wiring
        check_ports(session, decoder, self._slots, self._states)

    @property
    def version(self) -> str:
        """onnxruntime's version."""
        return self._session.version

    @property
    def provider(self) -> str:
        """onnxruntime's name of the execution provider."""
        return self._session.provider

    @property
    def dtype(self) -> str:
        """Of the logits."""
        return self._session.outputs[self._decoder.logits].dtype

    @functools.cached_property
    def last_only(self) -> bool:
        """Whether the graph returns the last position's logits alone: it says so, or does so."""
        rows = self._session.outputs[self._decoder.logits].shape[1]
        if rows is not None or self.most == 1:
            return rows == 1
        # Packs of NPUs leave the dimension open and return one row.
        return len(self.begin(2).feed(np.zeros(2, np.int64))) == 1

    @property
    def cached(self) -> bool:
        """Whether the graph takes a past, so that tokens can be fed in parts."""
        return bool(self._slots or self._states)

    @property
    def shareable(self) -> bool:
        """Whether past and present may be one buffer here, in every layer.

        Such a buffer lies in the CPU's memory: other providers would copy it.
        """
        on_cpu = self._session.provider == PROVIDER
        return on_cpu and self.cached and all(slot.shareable for slot in self._slots)

    @property
    def windowed(self) -> bool:
        """Whether a layer keeps a window alone: its past is a buffer from the start."""
        return any(slot.least for slot in self._slots)

    @property
    def chunk(self) -> int | None:
        """The most tokens of a step of a prefill; None where the text must be fed at once.

        Only GroupQueryAttention is known to take several tokens behind a past in every
        release: the masks that older graphs compute are those of a prompt or of one token.
        What carries a state takes them, too: `find_states` knows no other.
        """
        known = self.cached and all(slot.shareable for slot in self._slots)
        return CHUNK if known and not self.wiring.by_length else None

    def width(self, chunk: int | None = None) -> int | None:
        """The most tokens of a step, `chunk` or the graph's own; None: all at once."""
        return 1 if self.last_only else chunk or self.chunk

    def steps(self, count: int, decode: int = 0, chunk: int | None = None) -> tuple[Step, ...]:
        """A plan that gives a row per token: singly where the graph returns one row a step."""
        return plan(count, decode, self.width(chunk))

    def begin(self, capacity: int | None = None, share: bool | None = None) -> Run:
        """A new sequence, with an empty past.

        capacity: the most tokens it will have; None where that is not known.
        share:    whether past and present are one buffer; None: as the pack says.
        """
        fixed = {slot.length for slot in self._slots if slot.length is not None}
        wanted = self._decoder.share_buffer if share is None else share
        room = min(fixed) if capacity is None and fixed else capacity
        cache: GrowingCache | SharedCache
        feeds = Feeds(self._session, self._decoder)
        if self.shareable and room is not None and (wanted or fixed or self.windowed):
            cache = SharedCache(self._session, self._slots, room, self._states)
            if self.wiring.counted and capacity is not None and not self.wiring.rolling:
                feeds = Feeds(self._session, self._decoder, room)
        elif fixed or self.windowed:
            raise GraphError(
                "a cache of a fixed length, or of a window, is run on the CPU alone",
                place=self._session.place,
                fix="Pass --ep cpu.",
            )
        else:
            cache = GrowingCache(self._session, self._slots, self._states)
        return Run(self._session, self._decoder, cache, self.cached, feeds)

    def blocks(
        self, tokens: Tokens, steps: Sequence[Step], done: int = 0, share: bool | None = None
    ) -> Iterator[Block]:
        """Run the steps over `tokens`, int64 [count]; of the first `done` steps no logits.

        Raises DumpError for no tokens or unknown ids, GraphError where a run fails or
        returns fewer rows than tokens. How many tokens fit: `limits.check_length`.
        """
        decoder = self._decoder
        check_tokens(tokens, decoder.vocab_size, "the pack")
        if self.last_only and not self.cached and len(tokens) > 1:
            raise GraphError(
                "the graph returns the last position's logits alone and takes no past, so those"
                " of the others can't be had",
                place=f"{self._session.place}: output {decoder.logits}",
                fix="Export it with a past, or with the logits of every position.",
            )
        if done == len(steps):
            return
        run = self.begin(len(tokens), share)
        for step in steps[:done]:
            run.skip(tokens[step.start : step.stop])
        for step in steps[done:]:
            with self._advised(step):
                rows = run.feed(tokens[step.start : step.stop])
            if len(rows) != step.stop - step.start:
                raise GraphError(
                    "the graph does not return a row of logits for each token",
                    place=f"{self._session.place}: output {decoder.logits}",
                    found=f"{len(rows)} rows for {step.stop - step.start} tokens",
                    fix="Pass --chunk 1: it feeds the tokens one by one.",
                )
            yield Block(step, rows)

    @contextlib.contextmanager
    def _advised(self, step: Step) -> Iterator[None]:
        """Let a failure of a part of a text say which parts such a graph takes."""
        try:
            yield
        except GraphError as error:
            part = step.start and step.stop - step.start > 1
            if not part or self.chunk is not None or error.fix is not None:
                raise
            raise GraphError(
                error.message,
                place=error.place,
                fix="Leave --chunk out, or pass --chunk 1: the masks of such a graph are"
                " those of a whole text or of one token.",
            ) from error

    def batch(self, prompts: Sequence[Tokens]) -> list[npt.NDArray[np.generic]]:
        """The logits of several prompts that run together, [tokens, vocab] of each.

        Shorter ones are padded on the right: what follows a token does not bear on it.
        Raises GraphError for a graph that takes one sequence, or returns the last row alone.
        """
        session, decoder = self._session, self._decoder
        size, longest = len(prompts), max(map(len, prompts))
        ids = np.zeros((size, longest), np.int64)
        mask = np.zeros((size, longest), np.int64)
        for row, tokens in enumerate(prompts):
            check_tokens(tokens, decoder.vocab_size, "the pack")
            ids[row, : len(tokens)] = tokens
            mask[row, : len(tokens)] = 1
        positions = np.tile(np.arange(longest), (size, 1))
        arrays = arrays_of(session, decoder, ids, mask, positions)
        feeds = {name: session.value(array) for name, array in arrays.items()}
        self.check_batch(prompts)
        cache = GrowingCache(session, self._slots, self._states, size)
        result = cache.run(feeds, decoder.logits, longest)
        assert result is not None
        if result.shape[:2] != (size, longest):
            raise GraphError(
                "the graph does not return a row of logits for each token",
                place=f"{session.place}: output {decoder.logits}",
                found=list(result.shape),
                fix="Run the prompts one by one.",
            )
        rows = result.array()
        return [rows[index, : len(tokens)] for index, tokens in enumerate(prompts)]

    def check_batch(self, prompts: Sequence[Tokens]) -> None:
        """Raise GraphError for prompts that can't run at once."""
        refusal = self.no_batch(tuple(map(len, prompts)))
        if refusal is not None:
            fix = "Run the prompts one by one."
            raise GraphError(refusal, place=self._session.place, fix=fix)

    @property
    def quantised(self) -> bool:
        """Whether weights or past are in few bits."""
        return self.wiring.quantised or any("int8" in slot.dtype for slot in self._slots)

    @property
    def most(self) -> int | None:
        """The most tokens that a cache of a fixed length takes; None where it is open."""
        lengths = [slot.length for slot in self._slots if slot.length and not slot.rolling]
        return min(lengths, default=None)

    @property
    def no_parts(self) -> str | None:
        """Why tokens can't be fed in parts; None where they can."""
        return None if self.cached else "the graph takes no past"

    def no_parts_of(self, first: int, count: int) -> str | None:
        """Why `count` tokens fed in parts, the first ones `first`, are not those fed at once."""
        limit = self.wiring.crossed(first, count)
        if self.no_parts is not None or limit is None:
            return self.no_parts
        return f"calls of more than {limit} tokens get another table; pass {limit} or fewer"

    @property
    def one_cache(self) -> str | None:
        """Why the cache has one form alone; None where it may be shared or grow."""
        if not self.shareable:
            return self.no_parts or "past and present can't be one buffer"
        if any(slot.length is not None for slot in self._slots):
            return "the graph fixes the length of the cache"
        if self.windowed:
            return "a layer keeps a window of the past, which is one buffer from the start"
        return None

    def no_batch(self, lengths: Sequence[int]) -> str | None:
        """Why sequences of these lengths can't run at once; None where they can."""
        session = self._session
        if self.last_only:
            return "the graph returns the last position's logits alone"
        if session.inputs[self._decoder.input_ids].shape[0] == 1:
            return "the graph takes one sequence at a time"
        if any(slot.length is not None for slot in self._slots):
            return "the graph has a cache of a fixed length"
        if self.windowed:
            return "a layer keeps a window of the past, which is run for one sequence"
        if not self.wiring.alike(min(lengths), max(lengths)):
            return (
                "the graph looks at the length of a call, so a prompt of"
                f" {min(lengths)} tokens gets other values beside one of {max(lengths)}"
            )
        return None


def open_runner(container: Container, decoder: Decoder, settings: Settings | None = None) -> Runner:
    """The decoder's graph in onnxruntime.

    Raises GraphError or ContainerError where its external data is not inside the pack,
    and where onnxruntime refuses it, and DependencyError without the runtime it needs.
    """
    files_read(container, decoder)
    wiring = read_wiring(container, decoder)
    settings = settings or Settings()
    runtime = _runtime(decoder, settings, wiring)
    # Not resolve(): a hub snapshot's blob has no external data beside it.
    path = container.path / decoder.graph
    library = None if decoder.library is None else container.resolve(decoder.library)
    session = open_session(
        path, decoder.graph, settings, library, reuse=not wiring.misnamed, runtime=runtime
    )
    return Runner(session, decoder, wiring)


def _runtime(decoder: Decoder, settings: Settings, wiring: Wiring) -> RyzenAI | None:
    """What the pack says to the Ryzen AI runtime, where that is to run it.

    Raises DependencyError for a graph that needs it in a pack that does not say how.
    """
    wanted = settings.provider in (None, ryzen_ai.PROVIDER)
    if wanted and decoder.ryzen_ai is not None:
        return decoder.ryzen_ai
    if settings.provider == ryzen_ai.PROVIDER:
        raise GraphError(
            "genai_config.json names no options of the Ryzen AI runtime",
            place=decoder.graph,
            fix="Leave --ep ryzenai out.",
        )
    if wanted and wiring.vendor is not None and decoder.library is None:
        raise ryzen_ai.lacking(decoder.graph, *wiring.vendor)
    return None


def run_logits(
    path: str | PathLike[str],
    tokens: npt.ArrayLike,
    decode: int = 0,
    chunk: int | None = None,
    threads: int | None = None,
) -> Dump:
    """Run the pack at `path` over `tokens`, int [count]; the logits are kept in memory.

    The last `decode` tokens are fed one at a time through the cache.
    """
    container = open_container(path)
    decoder = read_decoder(container)
    ids = np.asarray(tokens, dtype=np.int64)
    check_length(container, decoder, len(ids))
    runner = open_runner(container, decoder, Settings(threads=threads))
    blocks = runner.blocks(ids, runner.steps(len(ids), decode, chunk))
    logits = np.concatenate([block.logits.astype(np.float32) for block in blocks])
    return Dump(name=str(path), tokens=ids, logits=logits, prefill=len(ids) - decode)
