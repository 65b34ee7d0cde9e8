"""New tables: a table that grows or gets another width, and one that is added."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from packimport.graph.changes.draft import Draft
from packimport.graph.node import Tensor
from packimport.graph.onnx_file import tensor_message
from packimport.graph.site import TensorSpan
from packimport.graph.trace import Constant, constant


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Pair:
    """cos and sin as the graph holds them: the constants, and their spans."""

    constants: tuple[Constant, Constant]
    spans: tuple[TensorSpan, TensorSpan]

    @property
    def names(self) -> tuple[str, str]:
        """The tensors' names."""
        cos, sin = self.constants
        return cos.tensor.name, sin.tensor.name


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Contents:
    """What a table is to hold: its dims, the bytes of cos and of sin, and why."""

    shape: tuple[int, int]
    values: tuple[bytes, bytes]
    reason: str


def pair_of(draft: Draft, inputs: Sequence[str], spans: tuple[TensorSpan, TensorSpan]) -> Pair:
    """The table behind two inputs of a node. Raises Unfollowed as `constant` does."""
    cos, sin = (constant(draft.file.main, name) for name in inputs)
    return Pair(constants=(cos, sin), spans=spans)


def overwrite(draft: Draft, pair: Pair, new: Contents) -> None:
    """Other values of the same shape, in the bytes of a table inside the graph's own file."""
    for span, values in zip(pair.spans, new.values, strict=True):
        assert span.file == draft.file.name
        assert span.length == len(values)
        draft.splices.written[span.offset] = values
        draft.note(span.name, f"{span.length} bytes of values are rewritten", new.reason)


def replace(draft: Draft, pair: Pair, new: Contents) -> None:
    """Give a table other dims and values; its names stay.

    External values go to the end of their data file, and the old ones stay, unused.
    """
    rows, pairs = new.shape
    for found, span, values in zip(pair.constants, pair.spans, new.values, strict=True):
        tensor = found.tensor
        draft.replace_tensor(tensor, _message(draft, pair, tensor.name, (tensor, values), new))
        for name in found.names:
            draft.reshape_value(name, new.shape)
        old = " x ".join(map(str, span.shape))
        draft.note(tensor.name, f"{old} becomes {rows} x {pairs}", new.reason)


def add(draft: Draft, like: Pair, names: tuple[str, str], new: Contents) -> tuple[str, str]:
    """A table more, stored as `like` is; the names of cos and sin."""
    draft.refuse_old()
    rows, pairs = new.shape
    made = []
    for found, name, values in zip(like.constants, names, new.values, strict=True):
        own = draft.new_name(name)
        draft.add_initializer(_message(draft, like, own, (found.tensor, values), new))
        draft.note(own, f"a table of {rows} x {pairs} is added", new.reason)
        made.append(own)
    return made[0], made[1]


def _message(
    draft: Draft, pair: Pair, name: str, stored: tuple[Tensor, bytes], new: Contents
) -> bytes:
    """A constant of some values, stored as the tensor of `pair` beside them is."""
    like, values = stored
    if like.external is None:
        return tensor_message(name, like.dtype, new.shape, values)
    file = pair.spans[0 if like is pair.constants[0].tensor else 1].file
    place = {
        "location": dict(like.external)["location"],
        "offset": str(draft.room.add(file, values, f"{name}: {new.reason}")),
        "length": str(len(values)),
    }
    return tensor_message(name, like.dtype, new.shape, external=place)
