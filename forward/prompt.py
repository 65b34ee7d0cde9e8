"""Prompt: the token ids that are to be run, from a file of them or from a text."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from forward.chat import ChatTemplate, messages_of, read_messages
from forward.data_set import read_data_set
from forward.dump import Tokens
from forward.npy import load_array
from forward.text_file import read_text
from forward.tokenizer import Tokenizer
from packimport.errors import DocumentError, DumpError, PackimportError, UsageError
from packimport.pack.documents import Document, load_json, read_json


def read_tokens(path: Path) -> Tokens:
    """int64 [count] from a .npy file of integers or a JSON list of them.

    Raises DumpError or DocumentError for a file that holds anything else.
    """
    if path.suffix.lower() != ".npy":
        document = Document(str(path), load_json(path))
        return np.array(document.integers(), dtype=np.int64)
    array = load_array(path)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise DumpError(
            "not a list of token ids",
            place=str(path),
            found=f"{array.dtype} {list(array.shape)}",
            allowed="integers [count]",
        )
    return array.astype(np.int64)


def check_tokens(tokens: Tokens, vocab_size: int, owner: str) -> None:
    """Refuse no tokens at all, and ids outside the vocabulary of `owner`."""
    if not len(tokens):
        raise DumpError("there are no tokens to run", fix="Pass a text or a file with some.")
    unknown = np.flatnonzero((tokens < 0) | (tokens >= vocab_size))
    if unknown.size:
        raise DumpError(
            f"the token at position {int(unknown[0])} is not in the vocabulary of {owner}",
            found=int(tokens[unknown[0]]),
            allowed=f"0 to {vocab_size - 1}",
            fix="Pass tokens that were made for this model.",
        )


@contextmanager
def of_prompt(index: int) -> Iterator[None]:
    """Let an error of the block name the prompt, as the folder of its dump is called."""
    try:
        yield
    except PackimportError as error:
        place = f"prompt {index:05d}" + ("" if error.place is None else f", {error.place}")
        raise type(error)(
            error.message, place=place, found=error.found, allowed=error.allowed, fix=error.fix
        ) from error


@dataclass(frozen=True, slots=True)
class Given:
    """What a user gave to run: exactly one is not None.

    tokens: a file of ids. prompt: a text. prompt_file: a file of text.
    messages: a file of chat messages.
    """

    tokens: Path | None = None
    prompt: str | None = None
    prompt_file: Path | None = None
    messages: Path | None = None

    def __post_init__(self) -> None:
        given = (self.tokens, self.prompt, self.prompt_file, self.messages)
        if sum(value is not None for value in given) != 1:
            raise UsageError(
                "say what to run, once",
                allowed="--tokens FILE, --prompt TEXT or --prompt-file F, or --messages FILE",
            )

    def read(self, tokenizer: Tokenizer) -> Tokens:
        """The ids, int64 [count], of a text by `tokenizer`.

        Messages become a text by the chat template beside it, which holds every special
        token that is wanted.
        """
        if self.tokens is not None:
            return read_tokens(self.tokens)
        if self.messages is not None:
            text = ChatTemplate(tokenizer.path.parent).text(read_messages(self.messages))
            return tokenizer.encode(text, special=False)
        given = self.prompt if self.prompt_file is None else read_text(self.prompt_file)
        return tokenizer.encode(given or "")


def read_prompts(path: Path, tokenizer: Tokenizer) -> list[Tokens]:
    """The ids of every line of a JSONL file: an object with prompt, tokens or messages.

    Of a folder of dumps: their ids.
    Raises DocumentError, with the line, for a line that is none of these.
    """
    if path.is_dir():
        return [dump.tokens for dump in read_data_set(path).dumps]
    texts: list[Tokens] = []
    template = ChatTemplate(tokenizer.path.parent)
    # Not splitlines: JSON texts may hold U+2028, U+0085 and their like as they are.
    lines = read_text(path).removesuffix("\n").split("\n")
    for number, line in enumerate(lines if any(lines) else (), 1):
        place = f"{path} line {number}"
        item = Document(place, read_json(line.encode(), place))
        if len(item.fields()) != 1 or not {"prompt", "tokens", "messages"} & item.fields().keys():
            raise item.error("not a prompt", allowed="one key: prompt, tokens or messages")
        if (ids := item.get("tokens")) is not None:
            texts.append(np.array(ids.integers(), dtype=np.int64))
            continue
        if (messages := item.get("messages")) is not None:
            text = template.text(messages_of(messages))
            texts.append(tokenizer.encode(text, special=False))
        else:
            texts.append(tokenizer.encode(item.require("prompt").text()))
    if not texts:
        raise DocumentError("no prompts", place=str(path), allowed="a JSON object on each line")
    return texts
