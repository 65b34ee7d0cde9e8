"""The past of one or more sequences: keys and values that are carried from step to step.

Two kinds. A growing cache hands each present, one step longer, to the next step as its
past. A shared one is a buffer for the whole sequence that is past and present at once:
GroupQueryAttention writes the new entries behind the old ones, nothing is copied, and
nothing has to be bound again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from forward.genai_config import Decoder
from forward.session import Binding, Port, Session, Value
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
    names = [
        (past.replace("%d", str(layer)), present.replace("%d", str(layer)))
        for layer in range(decoder.layers)
        for past, present in (
            (decoder.past_key, decoder.present_key),
            (decoder.past_value, decoder.present_value),
        )
    ]
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

    def __init__(self, session: Session, slots: Sequence[Slot], batch: int = 1) -> None:
        self._session = session
        self._slots = slots
        self._past = {s.past: session.empty(s.shape(batch, 0), s.dtype) for s in slots}

    def run(self, feeds: Mapping[str, Value], logits: str | None, count: int) -> Value | None:
        """One step of `count` tokens; the logits, where their output is named."""
        del count  # onnxruntime allocates by the shapes of the feeds
        presents = [slot.present for slot in self._slots]
        wanted = [*presents, *([logits] if logits is not None else [])]
        if not wanted:
            return None
        results = self._session.run({**feeds, **self._past}, wanted)
        self._past = {slot.past: results[slot.present] for slot in self._slots}
        return None if logits is None else results[logits]


class SharedCache:
    """A cache of one buffer for each slot, bound once as past and as present.

    Logits of as many rows as those of the step before are written over them.
    """

    def __init__(self, session: Session, slots: Sequence[Slot], capacity: int) -> None:
        """capacity: the positions that the sequence will have.

        Raises GraphError where the graph fixes a length that is too short for them.
        """
        self._session = session
        self._buffers = [
            (slot, session.zeros(slot.shape(1, _room(session, slot, capacity)), slot.dtype))
            for slot in slots
        ]
        self._whole = self._bound()
        self._silent: Binding | None = None
        self._count = 0

    def run(self, feeds: Mapping[str, Value], logits: str | None, count: int) -> Value | None:
        """One step of `count` tokens; the logits, where their output is named."""
        if logits is None:
            self._silent = self._silent or self._bound()
            for name, value in feeds.items():
                self._silent.input(name, value)
            self._silent.run(partly=True)
            return None
        for name, value in feeds.items():
            self._whole.input(name, value)
        if count != self._count:
            self._whole.new_output(logits)
        self._whole.run()
        result = self._whole.result(logits)
        if count != self._count:
            self._whole.output(logits, result)
            self._count = count
        return result

    def _bound(self) -> Binding:
        binding = self._session.bind()
        for slot, buffer in self._buffers:
            binding.input(slot.past, buffer)
            binding.output(slot.present, buffer)
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
