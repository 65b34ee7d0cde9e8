"""Document: a value of a JSON or YAML file that knows its place."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from packimport.errors import DocumentError
from packimport.pack.strict_json import escape

# Every integer up to here is a float64, too: what JSON readers agree on.
MAX_INTEGER = 2**53


@dataclass(frozen=True, slots=True)
class Document:
    """A value of a JSON or YAML file, and where it stands.

    file:    the file's name, for errors.
    value:   null, bool, int, float, str, list or dict, as the parser gave it.
    pointer: JSON pointer (RFC 6901) of the value; "" is the whole document.

    Every getter raises DocumentError naming file, pointer, what was found and
    what is allowed. A bool is never a number.
    """

    file: str
    value: object
    pointer: str = ""

    def error(
        self,
        message: str,
        *,
        allowed: str | None = None,
        fix: str | None = None,
        key: str | None = None,
    ) -> DocumentError:
        """An error at this place; `key`: at that key of it, which is missing."""
        if key is not None:
            place = f"{self.file}#{self.pointer}/{escape(key)}"
            return DocumentError(message, place=place, allowed=allowed, fix=fix)
        return DocumentError(
            message, place=self.place, found=_shown(self.value), allowed=allowed, fix=fix
        )

    @property
    def place(self) -> str:
        """File and pointer."""
        return f"{self.file}#{self.pointer}"

    @property
    def is_object(self) -> bool:
        """Whether this is an object, with keys."""
        return isinstance(self.value, dict)

    @property
    def is_list(self) -> bool:
        """Whether this is a list."""
        return isinstance(self.value, list)

    def fields(self) -> dict[str, Document]:
        """The values of an object by key, in the file's order."""
        if not isinstance(self.value, dict):
            raise self.error("not an object", allowed="an object")
        return {
            key: Document(self.file, value, f"{self.pointer}/{escape(str(key))}")
            for key, value in self.value.items()
        }

    def items(self) -> tuple[Document, ...]:
        """The entries of a list."""
        if not isinstance(self.value, list):
            raise self.error("not a list", allowed="a list")
        return tuple(
            Document(self.file, value, f"{self.pointer}/{index}")
            for index, value in enumerate(self.value)
        )

    def has(self, key: str) -> bool:
        """Whether the object has `key`, be it null."""
        return key in self._object()

    def get(self, key: str) -> Document | None:
        """The value at `key`; None where it is absent or null."""
        value = self._object().get(key)
        return None if value is None else self._at(key, value)

    def require(self, key: str, allowed: str | None = None) -> Document:
        """The value at `key`, which must be there; it may be null."""
        values = self._object()
        if key not in values:
            raise self.error("this key is missing", key=key, allowed=allowed)
        return self._at(key, values[key])

    def _object(self) -> dict[str, object]:
        if not isinstance(self.value, dict):
            raise self.error("not an object", allowed="an object")
        return self.value

    def _at(self, key: str, value: object) -> Document:
        return Document(self.file, value, f"{self.pointer}/{escape(key)}")

    def text(self, choices: Sequence[str] | None = None) -> str:
        """A string; one of `choices` where they are given."""
        allowed = "a string" if choices is None else ", ".join(choices)
        if not isinstance(self.value, str):
            raise self.error("not a string", allowed=allowed)
        if choices is not None and self.value not in choices:
            raise self.error("not one of the known values", allowed=allowed)
        return self.value

    def boolean(self) -> bool:
        """True or false."""
        if not isinstance(self.value, bool):
            raise self.error("neither true nor false", allowed="true or false")
        return self.value

    def number(self) -> float:
        """A finite number; an integer is one too."""
        value = self.value
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error("not a number", allowed="a number")
        if not math.isfinite(value):
            raise self.error("not a finite number", allowed="a finite number")
        return float(value)

    def integer(self, minimum: int = -MAX_INTEGER, maximum: int = MAX_INTEGER) -> int:
        """An integer within the bounds; 4096.0 is one, too."""
        value = self.value
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error("not an integer", allowed="an integer")
        if not minimum <= value <= maximum:
            raise self.error(
                "an integer out of range", allowed=f"an integer from {minimum} to {maximum}"
            )
        return value

    def numbers(self) -> tuple[float, ...]:
        """A list of finite numbers."""
        return tuple(item.number() for item in self.items())

    def integers(self, minimum: int = -MAX_INTEGER) -> tuple[int, ...]:
        """A list of integers."""
        return tuple(item.integer(minimum) for item in self.items())

    def texts(self) -> tuple[str, ...]:
        """A list of strings."""
        return tuple(item.text() for item in self.items())


def _shown(value: object) -> str:
    """`value` as JSON would show it: null and true, not None and True."""
    if isinstance(value, float) and not math.isfinite(value):
        return repr(value)
    if isinstance(value, list | dict):
        kind = "a list" if isinstance(value, list) else "an object"
        return f"{kind} of {len(value)}"
    return json.dumps(value, ensure_ascii=False, default=str)
