"""The process that runs what strangers wrote; `limited.py` starts it as a script, alone.

Arguments: a folder to import from, and bytes of memory. Each line of standard input is a
request, a JSON object with `job`, `seconds` and what the job takes; each line of standard
output is its answer, an object with `result` or `fault`. It ends when its input does.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

_MAX_TEXT = 1 << 23

# A tokenizer of the library `tokenizers`, which gives no types.
_loaded: list[Any] = []


class Fault(Exception):
    """What a template complains of, or a text that outgrows its limit."""


def main() -> None:
    """Answer every request of standard input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent is asked to end, and ends this
    sys.path.append(sys.argv[1])
    _limit(int(sys.argv[2]))
    # What a library prints must not be taken for an answer.
    answers = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    for line in sys.stdin.buffer:
        request = json.loads(line)
        _limit_time(request.pop("seconds"))
        try:
            answer = {"result": _JOBS[request.pop("job")](**request)}
        except Fault as error:
            answer = {"fault": str(error)[:1000]}
        # A panic of a library in Rust is no Exception.
        except BaseException as error:
            answer = {"fault": f"{type(error).__name__}: {error}"[:1000].rstrip(": ")}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


def render(template: str, messages: list[object], tokens: dict[str, str]) -> str:
    """The text that a chat template makes of messages."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def complain(message: object) -> None:
        raise Fault(str(message))

    # As transformers sets it up: templates are written for these.
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = lambda value, indent=None: json.dumps(
        value, ensure_ascii=False, indent=indent
    )
    environment.globals["raise_exception"] = complain
    stream = environment.from_string(template).generate(
        messages=messages, add_generation_prompt=True, **tokens
    )
    return "".join(_bounded(stream))


def load(path: str) -> None:
    """Read a tokenizer.json, for `encode` and `decode`."""
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(path)
    except Exception as error:  # the library raises bare Exception
        raise Fault(f"not a tokenizer: {error}") from error
    # A file may carry settings of training, which would cut the text silently.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    _loaded[:] = [tokenizer]


def encode(text: str, special: bool) -> list[int]:
    """Token ids of a text; special: with those that the file adds by itself."""
    ids: list[int] = _loaded[0].encode(text, add_special_tokens=special).ids
    return ids


def decode(lists: list[list[int]]) -> list[str]:
    """The text of each list of ids, special tokens left out."""
    return list(_bounded(_loaded[0].decode(ids, skip_special_tokens=True) for ids in lists))


_JOBS: dict[str, Callable[..., object]] = {
    "render": render,
    "load": load,
    "encode": encode,
    "decode": decode,
}


def _bounded(pieces: Iterator[str]) -> Iterator[str]:
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > _MAX_TEXT:
            raise Fault(f"its text has more than {_MAX_TEXT} characters")
        yield piece


def _limit(memory: int) -> None:
    """Bound the memory; let no file be written and no memory be dumped to the disk."""
    if sys.platform != "win32":
        import resource

        for kind, most in (
            (resource.RLIMIT_AS, memory),
            (resource.RLIMIT_FSIZE, 0),
            (resource.RLIMIT_CORE, 0),
        ):
            # Not every system has each of them.
            with suppress(OSError, ValueError):
                resource.setrlimit(kind, (most, most))


def _limit_time(seconds: int) -> None:
    """End this process after so much more processor time: the parent may be gone."""
    if sys.platform != "win32":
        import resource

        most = int(time.process_time()) + seconds + 1
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_CPU, (most, resource.RLIM_INFINITY))


if __name__ == "__main__":
    main()
