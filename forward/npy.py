"""Npy: the .npy files of a dump, opened with every size checked."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from packimport.errors import DumpError

Logits = npt.NDArray[np.float32]
FLOATS = ("<f4", "<f2")


@dataclass(frozen=True, slots=True)
class NpyRows:
    """The rows of a float .npy file, read where they are asked for.

    Read and not mapped: the pages of a mapped file count as the process's memory.
    """

    path: Path
    shape: tuple[int, int]
    offset: int
    dtype: str = "<f4"

    def __getitem__(self, rows: slice, /) -> Logits:
        """float32 [stop − start, vocab]. Raises DumpError where the file is gone or cut by now."""
        start, stop, _ = rows.indices(self.shape[0])
        width, size = self.shape[1], np.dtype(self.dtype).itemsize
        count = (stop - start) * width
        offset = self.offset + size * start * width
        try:
            flat = np.fromfile(self.path, self.dtype, count, offset=offset)
        except OSError as error:
            reason = error.strerror or error
            raise DumpError(f"can't be read any more: {reason}", place=str(self.path)) from error
        if flat.size != count:
            raise DumpError(
                "the file was cut while it was read",
                place=str(self.path),
                found=f"{flat.size} of {count} values at byte {offset}",
                fix="Make the file again.",
            )
        return flat.reshape(stop - start, width).astype(np.float32, copy=False)


def open_rows(path: Path) -> NpyRows:
    """The rows of a float32 or float16 file of two dimensions; nothing but its header is read."""
    shape, fortran, dtype, offset = _header(path)
    if dtype not in map(np.dtype, FLOATS) or fortran or len(shape) != 2 or 0 in shape:
        raise DumpError(
            "not an array of logits",
            place=str(path),
            found=f"{dtype} {list(shape)}{' in Fortran order' if fortran else ''}",
            allowed="float32 or float16 [positions, vocab] in C order",
        )
    return NpyRows(path, (shape[0], shape[1]), offset, dtype.str)


def load_array(path: Path) -> npt.NDArray[np.generic]:
    """A whole .npy file of plain values. Raises DumpError where it is anything else."""
    shape, fortran, dtype, offset = _header(path)
    try:
        flat = np.fromfile(path, dtype, math.prod(shape), offset=offset)
        return flat.reshape(shape, order="F" if fortran else "C")
    except OSError as error:
        raise DumpError(f"can't be read: {error.strerror or error}", place=str(path)) from error
    except ValueError as error:
        raise DumpError(f"not a readable .npy file: {error}", place=str(path)) from error


def _header(path: Path) -> tuple[tuple[int, ...], bool, np.dtype[np.generic], int]:
    """Shape, whether in Fortran order, dtype, and where the values begin: to the file's end."""
    try:
        with path.open("rb") as file:
            if np.lib.format.read_magic(file) != (1, 0):
                raise ValueError("a header of another version than 1.0")
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
            offset = file.tell()
        size = path.stat().st_size
    except FileNotFoundError as error:
        raise DumpError("the file is missing", place=str(path), fix="Make it again.") from error
    except OSError as error:
        raise DumpError(f"can't be read: {error.strerror or error}", place=str(path)) from error
    except Exception as error:  # numpy lets through whatever Python's parser raises
        raise DumpError(f"not a readable .npy file: {error}", place=str(path)) from error
    if dtype.hasobject or dtype.fields is not None or any(length < 0 for length in shape):
        raise DumpError(
            "not a readable .npy file: no plain array of numbers",
            place=str(path),
            found=f"{dtype} {list(shape)}",
        )
    expected = offset + dtype.itemsize * math.prod(shape)
    if size != expected:
        raise DumpError(
            "the file is not as long as its header says",
            place=str(path),
            found=f"{size} bytes",
            allowed=f"{expected} bytes",
            fix="Make the file again.",
        )
    return tuple(shape), bool(fortran), dtype, offset


_WORDS = {
    ("<i8", 1): "an int64 array of one dimension",
    ("<i4", 2): "an int32 array of two dimensions",
    ("<f8", 1): "a float64 array of one dimension",
}


def read_array(path: Path, dtype: str, dimensions: int) -> npt.NDArray[np.generic]:
    """A whole array of a dtype, not empty; anything else is a DumpError."""
    array = load_array(path)
    if array.dtype != np.dtype(dtype) or array.ndim != dimensions or not array.size:
        raise DumpError(f"not {_WORDS[dtype, dimensions]}", place=str(path))
    return array
