"""Export: the frequencies and tables that a config declares, as a file for engine authors."""

from __future__ import annotations

import io
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packimport.errors import ContainerError, DependencyError, UsageError
from packimport.pack.signals import ended_by_signals
from packimport.rope.frequencies import frequencies
from packimport.rope.layouts import to_complex, to_duplicated, to_repeated, to_row
from packimport.rope.schedule import Rope
from packimport.rope.tables import table
from packimport.semantics.model import Semantics, rope_to_dict

Array = NDArray[np.generic]
Arrays = Mapping[str, Array]

# Layout ─▶ the arrays of one schedule; see `rope.layouts` for what each is.
LAYOUTS: Mapping[str, Callable[[Array, Array], Arrays]] = {
    "pairs": lambda cos, sin: {"cos": cos, "sin": sin},
    "duplicated": lambda cos, sin: {"cos": to_duplicated(cos), "sin": to_duplicated(sin)},
    "repeated": lambda cos, sin: {"cos": to_repeated(cos), "sin": to_repeated(sin)},
    "row": lambda cos, sin: {"cos_sin": to_row(cos, sin)},
    "complex": lambda cos, sin: {"cis": to_complex(cos, sin)},
}
DTYPES = ("float32", "float16", "bfloat16", "float64")
# Entries of one table, 1 GiB of float64: two million rows of a usual head.
MAX_ENTRIES = 2**27


@dataclass(frozen=True, kw_only=True, slots=True)
class Export:
    """Arrays by name, and what they are.

    One schedule: `inv_freq` float32 [pairs], `cos` and `sin` [rows, pairs] or as the
    layout says. Several: the same names with `.0`, `.1`, ... in the order of `schedules`.
    schedules: for each, its layers, its Rope and its attention factor, JSON-ready. The
    attention factor is in cos and sin already.
    notes: what a person should know: which calls a schedule that follows their length is for.
    """

    arrays: Arrays
    schedules: tuple[Mapping[str, object], ...]
    notes: tuple[str, ...] = ()

    def write(self, out: Path) -> None:
        """Write to a new file: .npz, .safetensors or .json, by its name.

        Raises UsageError for another ending or a dtype that the format does not carry,
        ContainerError where `out` exists, DependencyError without safetensors.
        """
        make = FORMATS.get(out.suffix.lower())
        if make is None:
            raise UsageError("no known format", place=str(out), allowed=", ".join(FORMATS))
        _write_new(out, make(self))


def export(
    semantics: Semantics,
    rows: int,
    *,
    dtype: str = "float32",
    layout: str = "pairs",
    seq_len: int | None = None,
) -> Export:
    """The tables of every schedule that `semantics` declares, rounded once to `dtype`.

    rows:    positions 0 .. rows - 1.
    seq_len: length of the call, for `dynamic` and `longrope`; None: the unscaled base
             and the short list.

    Raises ScheduleError for a layout or dtype that does not go together, and UsageError
    where nothing is declared, no layer rotates, or a table would have more entries than
    `MAX_ENTRIES`.
    """
    if semantics.declaration is None:
        raise UsageError(
            "nothing declares a RoPE schedule, so there is no table to write",
            place=semantics.model_type,
            fix="Pass the source model's config.json in place of the pack, or --model ID.",
        )
    grouped: dict[Rope, list[int]] = {}
    for layer, rope in enumerate(semantics.layers):
        if rope is not None:
            grouped.setdefault(rope, []).append(layer)
    if not grouped:
        raise UsageError("no layer declares RoPE, so there is no table", place=semantics.model_type)
    arrays: dict[str, Array] = {}
    schedules: list[Mapping[str, object]] = []
    for index, (rope, layers) in enumerate(grouped.items()):
        if rows * rope.pairs > MAX_ENTRIES:
            raise UsageError(
                "a table of so many rows does not fit",
                place="--rows",
                found=rows,
                allowed=f"up to {MAX_ENTRIES // rope.pairs}, of {rope.pairs} pairs each",
            )
        tag = f".{index}" if len(grouped) > 1 else ""
        values = frequencies(rope, seq_len)
        made = table(rope, rows, seq_len=seq_len, dtype=_dtype(dtype))
        parts = {"inv_freq": values.inv_freq, **LAYOUTS[layout](made.cos, made.sin)}
        arrays.update({f"{name}{tag}": part for name, part in parts.items()})
        schedules.append(
            {
                "layers": layers,
                "rope": rope_to_dict(rope),
                "attention_factor": values.attention_factor,
                "dtype": dtype,
                "layout": layout,
                "seq_len": seq_len,
            }
        )
    notes = dict.fromkeys(_shorter(rope) for rope in grouped) if seq_len is None else ()
    return Export(
        arrays=arrays, schedules=tuple(schedules), notes=tuple(note for note in notes if note)
    )


def _shorter(rope: Rope) -> str:
    """Which calls the table without a length is for; "" where one table is for all."""
    if rope.type == "longrope":
        what, limit = "the short list", rope.original_max_position_embeddings
    elif rope.type == "dynamic":
        what, limit = "the unscaled base", rope.max_position_embeddings
    else:
        return ""
    return (
        f"{rope.type}: without --seq-len this is {what}, for calls of up to {limit} positions;"
        f" --seq-len {'N' if limit is None else limit + 1} writes what longer ones take"
    )


def _dtype(name: str) -> np.dtype[np.generic]:
    import ml_dtypes

    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def _npz(made: Export) -> bytes:
    for name, array in made.arrays.items():
        if array.dtype.name == "bfloat16":
            raise UsageError(
                "numpy's format carries no bfloat16", place=name, fix="Write .safetensors instead."
            )
    buffer = io.BytesIO()
    # No allow_pickle: numpy before 2.1 writes that as one more array.
    arrays: dict[str, Any] = {"schedules": np.array(json.dumps(made.schedules)), **made.arrays}
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def _safetensors(made: Export) -> bytes:
    try:
        from safetensors import SafetensorError
        from safetensors.numpy import save
    except ImportError as error:
        raise DependencyError(
            "writing .safetensors needs the module safetensors", fix="pip install safetensors"
        ) from error
    # It reads an array's memory as it lies, without its strides.
    tensors = {name: np.ascontiguousarray(array) for name, array in made.arrays.items()}
    try:
        return save(tensors, {"schedules": json.dumps(made.schedules)})
    except SafetensorError as error:
        raise UsageError(
            f"the installed safetensors does not carry this dtype: {error}",
            fix="Write .npz instead.",
        ) from error


def _json(made: Export) -> bytes:
    for name, array in made.arrays.items():
        if np.iscomplexobj(array):
            raise UsageError("JSON carries no complex numbers", place=name)
    # float64 of a shorter float prints so that it reads back exactly.
    arrays = {name: array.astype(np.float64).tolist() for name, array in made.arrays.items()}
    text = json.dumps({"schedules": made.schedules, **arrays}, allow_nan=False)
    return (text + "\n").encode("utf-8")


FORMATS: Mapping[str, Callable[[Export], bytes]] = {
    ".npz": _npz,
    ".safetensors": _safetensors,
    ".json": _json,
}


def _write_new(out: Path, data: bytes) -> None:
    """The whole file or none: written beside its name, then moved there."""
    if os.path.lexists(out):
        raise ContainerError(
            "the output exists", place=str(out), fix="Remove it, or write to another path."
        )
    if not out.parent.is_dir():
        raise ContainerError("there is no such folder", place=str(out.parent), fix="Create it.")
    with ended_by_signals():
        handle, scratch = tempfile.mkstemp(dir=out.parent, prefix=".packimport-table-")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(handle)
            Path(scratch).chmod(0o644)
            Path(scratch).replace(out)
        except BaseException:
            Path(scratch).unlink(missing_ok=True)
            raise
