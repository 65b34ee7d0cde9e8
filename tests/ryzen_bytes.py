"""What Ryzen AI packs hold, read with onnx and numpy alone: tables, their spans, other bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper
from ryzen_tables import Declared

Doubles = NDArray[np.float64]
STEMS = ("cos_cache", "sin_cache", "sin_cos_cache_token", "sin_cos_cache_prefill")
# Half a unit in the last place of 1.
BF16, FP16, FP32 = 2.0**-8, 2.0**-11, 2.0**-24


@dataclass(frozen=True)
class Stored:
    """A tensor of a table: where its bytes lie, and its values."""

    name: str
    file: str
    offset: int
    length: int
    dtype: int
    values: NDArray[Any]


def tensors(graph: onnx.GraphProto) -> Iterator[tuple[str, TensorProto]]:
    """Initializers and Constants at any depth, by the name of their value."""
    for tensor in graph.initializer:
        yield tensor.name, tensor
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from tensors(attribute.g)
            elif node.op_type == "Constant" and attribute.HasField("t"):
                yield node.output[0], attribute.t


def every_node(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """The nodes of a graph and of its branches."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from every_node(attribute.g)


def stored(folder: Path, graph: str) -> dict[str, Stored]:
    """The tables of a pack by name, in whatever branch they stand."""
    whole = (folder / graph).read_bytes()
    found: dict[str, Stored] = {}
    for name, tensor in tensors(onnx.ModelProto.FromString(whole).graph):
        if not name.startswith(STEMS):
            continue
        if tensor.data_location == TensorProto.EXTERNAL:
            place = {entry.key: entry.value for entry in tensor.external_data}
            file, offset = place["location"], int(place["offset"])
            length = int(place["length"])
            with (folder / file).open("rb") as data:
                data.seek(offset)
                raw = data.read(length)
        else:
            raw = tensor.raw_data
            file, offset, length = graph, whole.find(raw), len(raw)
            assert whole.count(raw) == 1, name
        values = numpy_helper.to_array(
            TensorProto(name=name, data_type=tensor.data_type, dims=tensor.dims, raw_data=raw)
        )
        assert name not in found
        found[name] = Stored(name, file, offset, length, tensor.data_type, values)
    return found


@dataclass(frozen=True)
class Baked:
    """The cos and sin of one place, float64 [rows, pairs], and the rounding that 1 has there."""

    names: tuple[str, ...]
    cos: Doubles
    sin: Doubles
    rounding: float

    def is_right(self, declared: Declared) -> bool:
        """Whether every entry is within an ulp of its dtype, and what float32 angles allow.

        Frequencies of two implementations differ by some roundings of float32, and so do angles.
        """
        rows = len(self.cos)
        angles = np.outer(np.arange(rows), declared.inv_freq)
        for mine, right in zip((self.cos, self.sin), declared.right(rows), strict=True):
            allowed = 2 * self.rounding * np.abs(right) + angles * 2.0**-21 + 2.0**-22
            if not (np.abs(mine - right) <= allowed).all():
                return False
        return True


def baked(folder: Path, graph: str) -> dict[str, Baked]:
    """Every table of a pack, by the name of its first tensor."""
    found = stored(folder, graph)
    made = {}
    for name, one in found.items():
        wide = one.values.astype(np.float64)
        if name.startswith("cos_cache"):
            twin = name.replace("cos_cache", "sin_cache")
            roundings = {TensorProto.FLOAT: FP32, TensorProto.FLOAT16: FP16}
            sin = found[twin].values.astype(np.float64)
            made[name] = Baked((name, twin), wide, sin, roundings.get(one.dtype, BF16))
        elif name == "sin_cos_cache_token":
            cos, sin = np.split(wide, 2, axis=1)
            made[name] = Baked((name,), cos, sin, BF16)
        elif name == "sin_cos_cache_prefill":
            high, again, low, and_low = np.split(wide, 4, axis=2)
            assert np.array_equal(high, again, equal_nan=True)
            assert np.array_equal(low, and_low, equal_nan=True)
            cos, sin = high + low
            made[name] = Baked((name,), cos, sin, FP16)
    return made


def files(folder: Path) -> dict[str, bytes]:
    """The bytes of every file, by name relative to the folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def changed_tables(before: Path, after: Path, graph: str) -> set[str]:
    """The tensors whose bytes a patch changed; asserts that no other byte of any file did.

    A patch adds packimport.json, and config.json where there was none.
    """
    old, new = files(before), files(after)
    assert new.keys() - old.keys() <= {"packimport.json", "config.json"}
    assert old.keys() <= new.keys()
    spans = stored(before, graph)
    changed = set()
    for name, data in old.items():
        assert len(new[name]) == len(data), name
        mine, theirs = bytearray(data), bytearray(new[name])
        for span in spans.values():
            if span.file == name:
                cut = slice(span.offset, span.offset + span.length)
                if mine[cut] != theirs[cut]:
                    changed.add(span.name)
                mine[cut] = theirs[cut] = bytes(span.length)
        assert mine == theirs, name
    return changed
