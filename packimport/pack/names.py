"""Names: what the files of a pack may be called.

One rule for every system, so that a pack that one machine accepts is not
refused, or read differently, on the next:

- refused: control characters, bytes that are not UTF-8, backslashes, device
  names of Windows (`CON`, `aux.json`), names of one folder that differ only in
  case or in how Unicode composes them;
- reported, not refused: other names that Windows can't hold (`a:b`, `a?`,
  `a.`), because tools of Windows itself leave such files on Linux disks.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

# Control characters, surrogates (how Python shows bytes that are not UTF-8),
# and the separators of lines and paragraphs.
_UNPRINTABLE = frozenset({"Cc", "Cs", "Zl", "Zp"})
_NOT_ON_WINDOWS = frozenset('<>:"|?*')
_PORTS = "123456789¹²³"
_DEVICES = frozenset(
    {"con", "prn", "aux", "nul", "conin$", "conout$"}
    | {f"com{port}" for port in _PORTS}
    | {f"lpt{port}" for port in _PORTS}
)


def refusal(part: str) -> str | None:
    """Why no file or folder of a pack may have this name; None where it may.

    part: one component of a path.
    """
    if part in {"", ".", ".."}:
        return "is no name"
    if any(unicodedata.category(c) in _UNPRINTABLE for c in part):
        return "has control characters or bytes that are not UTF-8"
    if "\\" in part:
        return "has a backslash, which separates folders on Windows"
    if part.partition(".")[0].rstrip(" ").lower() in _DEVICES:
        return "is a device name of Windows"
    return None


def unportable(part: str) -> str | None:
    """Why Windows can't hold a name that is otherwise fine; None where it can."""
    bad = sorted(_NOT_ON_WINDOWS.intersection(part))
    if bad:
        return f"has {' '.join(bad)}"
    if part.endswith((".", " ")):
        return "ends in a dot or a space"
    return None


def collision(parts: Iterable[str]) -> tuple[str, str] | None:
    """Two names of one folder that some disks hold to be the same, if any."""
    seen: dict[str, str] = {}
    for part in parts:
        other = seen.setdefault(folded(part), part)
        if other != part:
            return other, part
    return None


def folded(name: str) -> str:
    """`name` as a disk compares it that knows neither case nor composition."""
    return unicodedata.normalize("NFC", name).lower()


def location_refusal(location: str) -> str | None:
    """Why a path that stands inside a pack's file may not be followed; None where it may.

    location: meant to be relative to a folder of the pack, with `/`. Refused are
    absolute paths, drive letters, backslashes, `..` and every name that
    `refusal` and `unportable` refuse.
    """
    if not location:
        return "is empty"
    if location.startswith(("/", "\\")):
        return "is absolute"
    if ":" in location:
        return "has a drive letter or a colon"
    parts = [part for part in location.split("/") if part not in {"", "."}]
    if ".." in parts:
        return "leaves its folder by `..`"
    if not parts:
        return "names no file"
    return next((why for part in parts if (why := refusal(part) or unportable(part))), None)
