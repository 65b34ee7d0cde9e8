"""Runner: tokens through a graph, step by step, as blocks of logits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from os import PathLike

import numpy as np
import numpy.typing as npt

from forward.dump import Dump, Tokens
from forward.genai_config import Decoder, read_decoder
from forward.kv_cache import GrowingCache, Slot, find_slots
from forward.limits import check_length
from forward.prompt import check_tokens
from forward.session import Port, Session, Value, open_session
from forward.steps import Block, Step, plan
from packimport.errors import GraphError
from packimport.pack.container import Container, open_container

_INTEGERS = ("int64", "int32")
_FLOATS = ("float32", "float16", "bfloat16")


class Run:
    """One sequence on its way through a graph.

    length: tokens fed so far.
    """

    def __init__(self, session: Session, decoder: Decoder, slots: Sequence[Slot]) -> None:
        self._session = session
        self._decoder = decoder
        self._cache = GrowingCache(session, slots)
        self.length = 0

    def feed(self, tokens: Tokens) -> npt.NDArray[np.generic]:
        """The logits after the next tokens, [rows, vocab]: a row per token, or the last alone.

        Raises GraphError where the run fails.
        """
        decoder, session = self._decoder, self._session
        if self.length and not self._cache.outputs:
            raise GraphError(
                "the graph takes no past, so its tokens can only be fed at once",
                place=session.place,
                fix="Leave --decode and --chunk out.",
            )
        start, stop = self.length, self.length + len(tokens)
        arrays = {
            decoder.input_ids: tokens,
            decoder.attention_mask: np.ones(stop, np.int64),
            decoder.position_ids: np.arange(start, stop),
        }
        feeds = {
            name: session.value(array[None].astype(session.inputs[name].dtype))
            for name, array in arrays.items()
            if name in session.inputs
        }
        try:
            results = session.run(
                {**feeds, **self._cache.feeds}, (decoder.logits, *self._cache.outputs)
            )
        except GraphError as error:
            raise GraphError(
                f"{error.message} (positions {start} to {stop - 1})",
                place=error.place,
                fix=error.fix,
            ) from error
        logits = results.pop(decoder.logits)
        self._cache.advance(results)
        self.length = stop
        return self._rows(logits)

    def _rows(self, logits: Value) -> npt.NDArray[np.generic]:
        if len(logits.shape) != 3 or logits.shape[0] != 1:
            raise GraphError(
                "logits of an unknown layout",
                place=f"{self._session.place}: output {self._decoder.logits}",
                found=list(logits.shape),
                allowed="[1, positions, vocab]",
            )
        rows: npt.NDArray[np.generic] = logits.array()[0]
        return rows


class Runner:
    """A decoder that is ready to run.

    Raises GraphError for inputs that it does not know how to feed.
    """

    def __init__(self, session: Session, decoder: Decoder) -> None:
        self._session = session
        self._decoder = decoder
        self._slots = find_slots(session, decoder)
        _check_ports(session, decoder, self._slots)

    @property
    def version(self) -> str:
        """onnxruntime's version."""
        return self._session.version

    @property
    def last_only(self) -> bool:
        """Whether the graph says that it returns the last position's logits alone."""
        return self._session.outputs[self._decoder.logits].shape[1] == 1

    def steps(self, count: int, decode: int = 0, chunk: int | None = None) -> tuple[Step, ...]:
        """A plan that gives a row per token: singly where the graph returns one row a step."""
        return plan(count, decode, 1 if self.last_only else chunk)

    def begin(self) -> Run:
        """A new sequence, with an empty past."""
        return Run(self._session, self._decoder, self._slots)

    def blocks(self, tokens: Tokens, steps: Sequence[Step]) -> Iterator[Block]:
        """Run the steps over `tokens`, int64 [count].

        Raises DumpError for no tokens or unknown ids, GraphError where a run fails or
        returns fewer rows than tokens. How many tokens fit: `limits.check_length`.
        """
        decoder = self._decoder
        check_tokens(tokens, decoder.vocab_size, "the pack")
        run = self.begin()
        for step in steps:
            rows = run.feed(tokens[step.start : step.stop])
            if len(rows) != step.stop - step.start:
                raise GraphError(
                    "the graph does not return a row of logits for each token",
                    place=f"{self._session.place}: output {decoder.logits}",
                    found=f"{len(rows)} rows for {step.stop - step.start} tokens",
                    fix="Pass --chunk 1: it feeds the tokens one by one.",
                )
            yield Block(step, rows)


def open_runner(container: Container, decoder: Decoder, threads: int | None = None) -> Runner:
    """The decoder's graph in onnxruntime."""
    # Not resolve(): a hub snapshot's blob has no external data beside it.
    path = container.path / decoder.graph
    return Runner(open_session(path, decoder.graph, threads), decoder)


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
    runner = open_runner(container, decoder, threads)
    blocks = runner.blocks(ids, runner.steps(len(ids), decode, chunk))
    logits = np.concatenate([block.logits.astype(np.float32) for block in blocks])
    return Dump(name=str(path), tokens=ids, logits=logits, prefill=len(ids) - decode)


def _check_ports(session: Session, decoder: Decoder, slots: Sequence[Slot]) -> None:
    known = {decoder.input_ids, decoder.attention_mask, decoder.position_ids}
    known |= {slot.past for slot in slots}
    for name, port in session.inputs.items():
        if name not in known:
            raise GraphError(
                "forward-serve does not know how to feed this input",
                place=f"{session.place}: input {name}",
                found=port.text(),
                allowed=", ".join(sorted(known - {slot.past for slot in slots})) + " and pasts",
            )
    for name in (decoder.input_ids, decoder.attention_mask, decoder.position_ids):
        if name in session.inputs:
            _check_integer_port(session, session.inputs[name])
    for name, there in ((decoder.input_ids, session.inputs), (decoder.logits, session.outputs)):
        if name not in there:
            raise GraphError(
                "the graph lacks what genai_config.json names",
                place=session.place,
                found=", ".join(list(there)[:5]),
                allowed=name,
            )
    logits = session.outputs[decoder.logits]
    if len(logits.shape) != 3 or logits.dtype not in _FLOATS:
        raise GraphError(
            "logits of an unknown type or layout",
            place=f"{session.place}: output {decoder.logits}",
            found=logits.text(),
            allowed="float32, float16 or bfloat16 [batch, positions, vocab]",
        )


def _check_integer_port(session: Session, port: Port) -> None:
    batch, length = port.shape if len(port.shape) == 2 else (0, 0)
    if port.dtype not in _INTEGERS or batch not in (None, 1) or length is not None:
        raise GraphError(
            "this input has a type or shape that forward-serve can't feed yet",
            place=f"{session.place}: input {port.name}",
            found=port.text(),
            allowed="int64 or int32 [1 or open, open]",
        )
