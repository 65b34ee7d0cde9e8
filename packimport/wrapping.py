"""Wrapping: lines of a text are folded where a person reads them, and left whole elsewhere."""

from __future__ import annotations

import sys

_LEAST = 40
# Where the values of a report's fields begin, and where those that are too wide for that go on.
_VALUES, _WIDE = 16, 8


def wrapped(text: str, width: int | None = None, *, values: int = _VALUES) -> str:
    """`text` with lines of at most `width` columns; what is folded goes on further right.

    width:  None for that of the terminal, and no folding where standard output is none.
    values: the column where what is folded of a field goes on. A word too wide for that stands
            further left.
    """
    if width is None:
        if not sys.stdout.isatty():
            return text
        import shutil

        width = max(_LEAST, shutil.get_terminal_size().columns)
    import textwrap

    lines: list[str] = []
    for line in text.split("\n"):
        indent = len(line) - len(line.lstrip())
        lines += textwrap.wrap(
            line,
            width,
            subsequent_indent=" " * (values if indent >= 4 else indent + 2),
            break_long_words=False,
            break_on_hyphens=False,
        ) or [""]
    too_wide = " " * values
    return "\n".join(
        " " * min(_WIDE, values) + line.lstrip()
        if len(line) > width and line.startswith(too_wide)
        else line
        for line in lines
    )
