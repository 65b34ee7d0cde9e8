"""The error tree. Every error that a user may meet is one of these.

    PackimportError          exit 3: the input is refused or not supported
    ├── UsageError           exit 2: the command line contradicts itself
    ├── DocumentError        a JSON or YAML file: names the file and the JSON pointer
    ├── ScheduleError        a RoPE schedule that no formula accepts: names the field
    ├── ContainerError       the pack on disk: names the file
    ├── GraphError           an ONNX graph: names the file and the node or tensor
    ├── PatchError           a pack that can't be mended
    ├── DumpError            logits, tokens and their dumps: names the file
    └── DependencyError      a module that this command needs is not installed

A message says where, what was expected, what was found, and what to do next.
"""

from __future__ import annotations


class PackimportError(Exception):
    """An input that is refused, with its place and its cure.

    message: what is wrong, one clause, no final stop.
    place:   the file, and the JSON pointer, node or tensor in it.
    found:   what stands there.
    allowed: what may stand there.
    fix:     what the user does next.
    """

    exit_code = 3

    def __init__(
        self,
        message: str,
        *,
        place: str | None = None,
        found: object = None,
        allowed: str | None = None,
        fix: str | None = None,
    ) -> None:
        self.message = message
        self.place = place
        self.found = None if found is None else shorten(found)
        self.allowed = allowed
        self.fix = fix
        super().__init__(self.text())

    def text(self) -> str:
        """The whole error on one line."""
        head = f"{printable(self.place)}: " if self.place else ""
        parts = [head + printable(self.message)]
        if self.found is not None:
            parts.append(f"found {self.found}")
        if self.allowed is not None:
            parts.append(f"allowed: {self.allowed}")
        line = "; ".join(parts)
        return f"{line}. {self.fix}" if self.fix else line

    def to_dict(self) -> dict[str, str | None]:
        """The error as the JSON report shows it."""
        return {
            "kind": type(self).__name__,
            "message": self.message,
            "place": self.place,
            "found": self.found,
            "allowed": self.allowed,
            "fix": self.fix,
        }


class UsageError(PackimportError):
    """The command line contradicts itself."""

    exit_code = 2


class DocumentError(PackimportError):
    """A JSON or YAML file that is malformed, or says what is not understood."""


class ScheduleError(PackimportError):
    """A RoPE schedule that no formula accepts. `key` is the field at fault."""

    def __init__(
        self, key: str, message: str, *, found: object = None, allowed: str | None = None
    ) -> None:
        self.key = key
        super().__init__(message, place=key, found=found, allowed=allowed)


class ContainerError(PackimportError):
    """A pack whose files are missing, unsafe or in the way."""


class GraphError(PackimportError):
    """An ONNX graph that can't be read, or holds what is not understood."""


class PatchError(PackimportError):
    """A pack that can't be mended. Nothing was written."""


class DumpError(PackimportError):
    """Logits, tokens or a dump that can't be used."""


class DependencyError(PackimportError):
    """A module that this command needs is not installed."""


def printable(text: str) -> str:
    """`text` with control and format characters escaped: names come from strangers."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def shorten(value: object, limit: int = 120) -> str:
    """`value` as a short printable text for an error message."""
    text = printable(value if isinstance(value, str) else repr(value))
    return text if len(text) <= limit else text[: limit - 1] + "…"
