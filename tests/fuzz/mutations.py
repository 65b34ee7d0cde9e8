"""Mutations: bytes of a good file, spoilt as a stranger or a bad disk would."""

from __future__ import annotations

import random

# Numbers at the borders of what readers hold.
NUMBERS = (b"0", b"-1", b"1e999", b"NaN", b"9" * 40, b"2147483648", b"18446744073709551616", b"1.5")
TOKENS = (
    *NUMBERS,
    *(b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"null", b"true", b'""', b"\\ud800"),
    *(b"\0", b"\xff", b"\xef\xbb\xbf", b"..", b"/", b"C:", b"\x80" * 9 + b"\x01", b"\x7f" * 4),
)


def mutated(data: bytes, others: list[bytes], rng: random.Random) -> bytes:
    """`data` after one to six changes; `others` lend pieces."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        change = rng.choice(CHANGES)
        change(out, others, rng)
    return bytes(out[: 1 << 20])


def _flip(out: bytearray, _: list[bytes], rng: random.Random) -> None:
    if out:
        out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)


def _set(out: bytearray, _: list[bytes], rng: random.Random) -> None:
    if out:
        out[rng.randrange(len(out))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))


def _cut(out: bytearray, _: list[bytes], rng: random.Random) -> None:
    start = rng.randrange(len(out) + 1)
    del out[start : start + rng.choice((1, 2, 16, 256, len(out)))]


def _insert(out: bytearray, _: list[bytes], rng: random.Random) -> None:
    at = rng.randrange(len(out) + 1)
    out[at:at] = rng.choice(TOKENS) * rng.choice((1, 1, 1, 2, 100))


def _replace(out: bytearray, _: list[bytes], rng: random.Random) -> None:
    token = rng.choice(TOKENS)
    at = rng.randrange(len(out) + 1)
    out[at : at + len(token)] = token


def _repeat(out: bytearray, _: list[bytes], rng: random.Random) -> None:
    start = rng.randrange(len(out) + 1)
    piece = out[start : start + rng.choice((1, 8, 64, 512))]
    out[start:start] = piece * rng.choice((1, 2, 20))


def _lend(out: bytearray, others: list[bytes], rng: random.Random) -> None:
    other = rng.choice(others)
    start = rng.randrange(len(other) + 1)
    at = rng.randrange(len(out) + 1)
    piece = other[start : start + rng.choice((4, 32, 512))]
    out[at : at + len(piece)] = piece


def _number(out: bytearray, _: list[bytes], rng: random.Random) -> None:
    """Another number in place of one, if there are any in text."""
    digits = [i for i in range(len(out)) if 0x30 <= out[i] <= 0x39]
    if digits:
        start = stop = rng.choice(digits)
        while stop < len(out) and 0x30 <= out[stop] <= 0x39:
            stop += 1
        out[start:stop] = rng.choice(NUMBERS)


CHANGES = (_flip, _set, _cut, _insert, _replace, _repeat, _lend, _number)
