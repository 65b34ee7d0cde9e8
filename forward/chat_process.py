"""The process that runs a chat template; `chat.py` starts it as a script, alone.

Standard input: JSON with template, messages and tokens. Standard output: the text.
Exit codes: 0; 1 with a line on standard error; 3 without jinja2.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

_MAX_TEXT = 1 << 23
_MEMORY = 1 << 30


class TemplateFault(Exception):
    """What the template itself complains of, or an outgrown text."""


def main() -> int:
    """Render what standard input holds."""
    _limit_memory()
    try:
        from jinja2.exceptions import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment
    except ImportError:
        return 3

    def complain(message: object) -> None:
        raise TemplateFault(str(message))

    given = json.load(sys.stdin.buffer)
    # As transformers sets it up: templates are written for these.
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(
        value, ensure_ascii=False, indent=indent
    )
    environment.globals["raise_exception"] = complain
    try:
        stream = environment.from_string(given["template"]).generate(
            messages=given["messages"], add_generation_prompt=True, **given["tokens"]
        )
        text = "".join(_bounded(stream))
    except (TemplateError, TemplateFault, ArithmeticError, LookupError, TypeError, ValueError) as e:
        sys.stderr.write(f"{type(e).__name__}: {e}")
        return 1
    sys.stdout.buffer.write(text.encode())
    return 0


def _bounded(pieces: Iterator[str]) -> Iterator[str]:
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > _MAX_TEXT:
            raise TemplateFault(f"its text has more than {_MAX_TEXT} characters")
        yield piece


def _limit_memory() -> None:
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))


if __name__ == "__main__":
    sys.exit(main())
