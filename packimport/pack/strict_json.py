"""Strict JSON: RFC 8259 in UTF-8, and nothing that two readers could take differently."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from packimport.errors import DocumentError

MAX_DEPTH = 64
MAX_NUMBER_LENGTH = 64
# The manifest of a folder of 100 000 files has about half as many. An empty list is two
# bytes in a file and 64 in memory.
MAX_VALUES = 1_000_000

_STRING_OR_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"?|[\[\]{}]', re.DOTALL)


def read_json(source: str | bytes, file: str) -> object:
    """The value that `source` holds; `file` is its name in errors.

    Raises DocumentError, with line and column or with a JSON pointer, for:
    anything but UTF-8, a byte order mark, malformed JSON, a key that stands
    twice in one object, NaN and Infinity, a number that float64 can't hold or
    that is longer than 64 characters, more than 64 levels of nesting, more than a
    million values, and half of a surrogate pair.
    """
    text = _decoded(source, file) if isinstance(source, bytes) else source
    if text.startswith("\ufeff"):
        raise DocumentError(
            "a byte order mark stands before the JSON text",
            place=file,
            allowed="UTF-8 without a byte order mark",
            fix="Save the file as UTF-8 without one.",
        )
    _check_count(text, file)
    _check_depth(text, file)
    reader = _Reader()
    try:
        value: object = reader.decoder.decode(text)
    except json.JSONDecodeError as error:
        raise DocumentError(
            f"malformed JSON: {error.msg}", place=f"{file}:{error.lineno}:{error.colno}"
        ) from None
    if reader.faulty or "\\u" in text:
        _refuse_faults(value, file)
    return value


def json_text(value: object) -> str:
    """`value` as JSON: keys in their order, two spaces of indent, a newline at the end.

    Raises ValueError for NaN and Infinity.
    """
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def escape(token: str) -> str:
    """`token` as one step of a JSON pointer (RFC 6901)."""
    return token.replace("~", "~0").replace("/", "~1")


def _decoded(data: bytes, file: str) -> str:
    if data[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in data[:4]:
        raise DocumentError(
            "the text is not UTF-8 but UTF-16 or UTF-32",
            place=file,
            allowed="UTF-8 without a byte order mark",
            fix="Save the file as UTF-8.",
        )
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise DocumentError(
            f"byte {error.start} is not UTF-8",
            place=file,
            allowed="UTF-8",
            fix="Save the file as UTF-8.",
        ) from None


def _check_depth(text: str, file: str) -> None:
    """Before parsing: the parser recurses, and a stranger chooses how deep."""
    if text.count("[") + text.count("{") <= MAX_DEPTH:
        return
    depth = 0
    for match in _STRING_OR_BRACKET.finditer(text):
        bracket = match.group()
        if bracket in "[{":
            depth += 1
        elif bracket in "]}":
            depth -= 1
        if depth > MAX_DEPTH:
            line = text.count("\n", 0, match.start()) + 1
            column = match.start() - text.rfind("\n", 0, match.start())
            raise DocumentError(
                "nested too deep", place=f"{file}:{line}:{column}", allowed=f"{MAX_DEPTH} levels"
            )


def _check_count(text: str, file: str) -> None:
    # Commas and brackets in strings count as well: that many is no config either way.
    count = text.count(",") + text.count("[") + text.count("{")
    if count > MAX_VALUES:
        raise DocumentError(
            "too many values", place=file, found=f"up to {count}", allowed=f"{MAX_VALUES}"
        )


@dataclass(frozen=True, slots=True)
class _Fault:
    """Stands in a value where something is to be refused: hooks don't know their place."""

    message: str
    found: str
    allowed: str
    key: str | None = None


class _Reader:
    """A JSON decoder that marks what is to be refused instead of hiding it."""

    def __init__(self) -> None:
        self.faulty = False
        self.decoder = json.JSONDecoder(
            object_pairs_hook=self._object,
            parse_int=self._integer,
            parse_float=self._float,
            parse_constant=self._constant,
        )

    def _fault(self, message: str, found: str, allowed: str, key: str | None = None) -> _Fault:
        self.faulty = True
        return _Fault(message, found, allowed, key)

    def _object(self, pairs: list[tuple[str, object]]) -> object:
        result = dict(pairs)
        if len(result) == len(pairs):
            return result
        twice = _first_repeated(key for key, _ in pairs)
        return self._fault("this key stands twice in its object", twice, "each key once", twice)

    def _integer(self, text: str) -> object:
        if len(text) > MAX_NUMBER_LENGTH:
            return self._fault(
                "a number of too many digits", text, f"{MAX_NUMBER_LENGTH} characters"
            )
        return int(text)

    def _float(self, text: str) -> object:
        if len(text) > MAX_NUMBER_LENGTH or not math.isfinite(float(text)):
            return self._fault("a number too large or too long", text, "what float64 holds")
        return float(text)

    def _constant(self, text: str) -> object:
        return self._fault("not a number of JSON", text, "a finite number")


def _first_repeated(keys: Iterable[str]) -> str:
    seen: set[str] = set()
    for key in keys:
        if key in seen:
            return key
        seen.add(key)
    raise AssertionError("no key is repeated")


def _refuse_faults(value: object, file: str) -> None:
    """Raise for the first fault in `value`, in reading order, with its pointer."""
    pending: list[tuple[object, str]] = [(value, "")]
    while pending:
        item, pointer = pending.pop()
        if isinstance(item, _Fault):
            place = pointer if item.key is None else f"{pointer}/{escape(item.key)}"
            raise DocumentError(
                item.message, place=f"{file}#{place}", found=item.found, allowed=item.allowed
            )
        if isinstance(item, str):
            _check_surrogates(item, f"{file}#{pointer}")
        elif isinstance(item, list):
            pending.extend((v, f"{pointer}/{i}") for i, v in reversed(list(enumerate(item))))
        elif isinstance(item, dict):
            for key in item:
                _check_surrogates(key, f"{file}#{pointer}")
            pending.extend((v, f"{pointer}/{escape(k)}") for k, v in reversed(item.items()))


def _check_surrogates(text: str, place: str) -> None:
    if any("\ud800" <= character <= "\udfff" for character in text):
        raise DocumentError(
            "half of a surrogate pair", place=place, found=ascii(text), allowed="whole characters"
        )
