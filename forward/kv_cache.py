"""The past of one or more sequences: keys and values that are carried from step to step.

Two kinds. A growing cache hands each present, one step longer, to the next step as its
past. A shared one is a buffer for the whole sequence that is past and present at once:
GroupQueryAttention writes the new entries behind the old ones, nothing is copied, and
nothing has to be bound again. Either carries the states of layers without attention, too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from forward.genai_config import Decoder
from forward.session import Binding, Port, Session, Value
from forward.states import State
from forward.wiring import Wiring
from packimport.errors import GraphError


@dataclass(frozen=True, kw_only=True, slots=True)
class Slot:
    """One past of the graph: an input, and the output that continues it.

    heads, width: of a past [batch, heads, length, width].
    length:       fixed by the graph; None where it is open.
    shareable:    whether past and present may be one buffer, of `least` positions or more.
    rolling:      whether that buffer may be shorter than the sequence.
    """

    past: str
    present: str
    dtype: str
    heads: int
    width: int
    length: int | None
    shareable: bool
    least: int
    rolling: bool

    def shape(self, batch: int, length: int) -> tuple[int, int, int, int]:
        """Of a past of `length` positions."""
        return (batch, self.heads, length, self.width)


def find_slots(session: Session, decoder: Decoder, wiring: Wiring) -> tuple[Slot, ...]:
    """Every past that the graph takes, layer by layer; () for a graph without a cache.

    Raises GraphError for a past without its present, of a fixed length that is not
    GroupQueryAttention's, or of another rank than [batch, heads, length, head size].
    """
    names = decoder.of_layers(
        (decoder.past_key, decoder.present_key), (decoder.past_value, decoder.present_value)
    )
    return tuple(
        _slot(session, decoder, wiring, session.inputs[past], present)
        for past, present in names
        if past in session.inputs
    )


def _slot(session: Session, decoder: Decoder, wiring: Wiring, port: Port, present: str) -> Slot:
    place = f"{session.place}: input {port.name}"
    if present not in session.outputs:
        raise GraphError(
            "this past has no present", place=place, allowed=f"an output named {present}"
        )
    if len(port.shape) != 4:
        raise GraphError(
            "a past of an unknown layout",
            place=place,
            found=port.text(),
            allowed="[batch, heads, length, head size]",
        )
    batch, heads, length, width = port.shape
    shareable = port.name in wiring.shareable
    if (length is not None and not shareable) or batch not in (None, 1):
        raise GraphError(
            "a past of a fixed size that can't be run",
            place=place,
            found=port.text(),
            allowed="a batch that is open or 1, and a length that is open or"
            " GroupQueryAttention's own",
        )
    return Slot(
        past=port.name,
        present=present,
        dtype=port.dtype,
        heads=heads or decoder.kv_heads,
        # Two entries of four bits share a byte.
        width=width or (decoder.head_size // 2 if port.dtype == "uint8" else decoder.head_size),
        length=length,
        shareable=shareable,
        least=wiring.shareable.get(port.name, 0),
        rolling=port.name in wiring.rolling,
    )


class GrowingCache:
    """A cache whose present, one step longer, is the next step's past.

    onnxruntime allocates each present; it is handed back without a copy.
    """

    def __init__(
        self,
        session: Session,
        slots: Sequence[Slot],
        states: Sequence[State] = (),
        batch: int = 1,
    ) -> None:
        self._session = session
        parts: Sequence[Slot | State] = (*slots, *states)
        self._presents = {part.past: part.present for part in parts}
        self._past = {
            **{slot.past: session.empty(slot.shape(batch, 0), slot.dtype) for slot in slots},
            **{state.past: session.zeros(state.shape(batch), state.dtype) for state in states},
        }

    def run(self, feeds: Mapping[str, Value], logits: str | None, count: int) -> Value | None:
        """One step of `count` tokens; the logits, where their output is named."""
        del count  # onnxruntime allocates by the shapes of the feeds
        wanted = [*self._presents.values(), *([logits] if logits is not None else [])]
        if not wanted:
            return None
        results = self._session.run({**feeds, **self._past}, wanted)
        self._past = {past: results[present] for past, present in self._presents.items()}
        return None if logits is None else results[logits]


class SharedCache:
    """A cache of one buffer for each slot, bound once as past and as present.

    A state is read while its successor is written, so it has two buffers that change places
    at every step: there are two bindings then, one for each way round. Logits of as many
    rows as those of the step before are written over them.
    """

    def __init__(
        self,
        session: Session,
        slots: Sequence[Slot],
        capacity: int,
        states: Sequence[State] = (),
    ) -> None:
        """capacity: the positions that the sequence will have.

        Raises GraphError where the graph fixes a length that is too short for them.
        """
        self._session = session
        self._slots = [
            (slot, session.zeros(slot.shape(1, _room(session, slot, capacity)), slot.dtype))
            for slot in slots
        ]
        self._states = [
            (state, [session.zeros(state.shape(1), state.dtype) for _ in range(2)])
            for state in states
        ]
        self._turns = 2 if states else 1
        self._whole = [self._bound(turn) for turn in range(self._turns)]
        self._silent: list[Binding] = []
        self._turn = 0
        self._count = 0
        self._logits: Value | None = None

    def run(self, feeds: Mapping[str, Value], logits: str | None, count: int) -> Value | None:
        """One step of `count` tokens; the logits, where their output is named."""
        turn, self._turn = self._turn, (self._turn + 1) % self._turns
        if logits is None:
            self._silent = self._silent or [self._bound(each) for each in range(self._turns)]
            binding = self._silent[turn]
            binding.inputs(feeds)
            binding.run(partly=True)
            return None
        binding = self._whole[turn]
        binding.inputs(feeds)
        if self._logits is None or count != self._count:
            binding.new_output(logits)
        else:
            binding.output(logits, self._logits)
        binding.run()
        self._logits, self._count = binding.result(logits), count
        return self._logits

    def _bound(self, turn: int) -> Binding:
        binding = self._session.bind()
        for slot, buffer in self._slots:
            binding.input(slot.past, buffer)
            binding.output(slot.present, buffer)
        for state, buffers in self._states:
            binding.input(state.past, buffers[turn])
            binding.output(state.present, buffers[1 - turn])
        return binding


def _room(session: Session, slot: Slot, capacity: int) -> int:
    if slot.length is None:
        return max(capacity, slot.least)
    if slot.length < capacity and not slot.rolling:
        raise GraphError(
            "more tokens than the cache of the graph has room for",
            place=f"{session.place}: input {slot.past}",
            found=capacity,
            allowed=f"{slot.length} or fewer",
        )
    return slot.length
