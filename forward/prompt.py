"""Prompt: token ids from a file or from a text, and texts from token ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from forward.chat import messages_of, read_messages, read_template, render
from forward.dump import Tokens
from forward.npy import load_array
from packimport.errors import DependencyError, DocumentError, DumpError, UsageError
from packimport.pack.documents import MAX_BYTES, Document, load_json, read_json

if TYPE_CHECKING:
    from types import ModuleType

TOKENIZER = "tokenizer.json"


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


def read_text(path: Path) -> str:
    """The text of a UTF-8 file, line ends as they are, without a byte order mark."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise DocumentError(f"can't be read: {error.strerror}", place=str(path)) from error
    except UnicodeDecodeError as error:
        raise DocumentError(
            f"not UTF-8 at byte {error.start}", place=str(path), fix="Save the file as UTF-8."
        ) from error


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

    def read(self, tokenizer: Path) -> Tokens:
        """The ids, int64 [count]; a text is tokenized by the tokenizer.json at `tokenizer`.

        Messages become a text by the chat template beside it, which holds every special
        token that is wanted.
        """
        if self.tokens is not None:
            return read_tokens(self.tokens)
        if self.messages is not None:
            template, special = read_template(tokenizer.parent)
            text = render(template, read_messages(self.messages), special)
            return Tokenizer(tokenizer).encode(text, special=False)
        given = self.prompt if self.prompt_file is None else read_text(self.prompt_file)
        return Tokenizer(tokenizer).encode(given or "")


def read_prompts(path: Path, tokenizer: Path) -> list[Tokens]:
    """The ids of every line of a JSONL file: an object with prompt, tokens or messages.

    Raises DocumentError, with the line, for a line that is none of these.
    """
    texts: list[Tokens] = []
    known: Tokenizer | None = None
    for number, line in enumerate(read_text(path).splitlines(), 1):
        place = f"{path} line {number}"
        item = Document(place, read_json(line.encode(), place))
        if len(item.fields()) != 1 or not {"prompt", "tokens", "messages"} & item.fields().keys():
            raise item.error("not a prompt", allowed="one key: prompt, tokens or messages")
        if (ids := item.get("tokens")) is not None:
            texts.append(np.array(ids.integers(), dtype=np.int64))
            continue
        known = known or Tokenizer(tokenizer)
        if (messages := item.get("messages")) is not None:
            template, special = read_template(tokenizer.parent)
            text = render(template, messages_of(messages), special)
            texts.append(known.encode(text, special=False))
        else:
            texts.append(known.encode(item.require("prompt").text()))
    if not texts:
        raise DocumentError("no prompts", place=str(path), allowed="a JSON object on each line")
    return texts


class Tokenizer:
    """A tokenizer.json, run by the library `tokenizers`."""

    def __init__(self, path: Path) -> None:
        """Raises DependencyError without the library, DocumentError for a bad file."""
        library = _tokenizers()
        if not path.is_file():
            raise DocumentError(
                "there is no tokenizer.json, which a text needs",
                place=str(path),
                fix="Put the model's tokenizer.json there, or pass --tokens FILE.",
            )
        if path.stat().st_size > MAX_BYTES:
            raise DocumentError("the file is too large", place=str(path))
        try:
            # The library gives no types.
            self._tokenizer: Any = library.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises bare Exception
            raise DocumentError(f"not a tokenizer: {error}", place=str(path)) from error
        # A file may carry settings of training, which would cut the text silently.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()

    def encode(self, text: str, special: bool = True) -> Tokens:
        """int64 [count]; special: with the tokens that the file adds by itself."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            # Bytes of a command line that are no text arrive as lone surrogates.
            raise DocumentError(
                f"the text is not Unicode at character {error.start}",
                fix="Save it as UTF-8 and pass --prompt-file F.",
            ) from error
        return np.array(
            self._tokenizer.encode(text, add_special_tokens=special).ids, dtype=np.int64
        )

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`, special tokens left out."""
        text: str = self._tokenizer.decode(list(ids), skip_special_tokens=True)
        return text

    def stream(self, ids: Iterable[int]) -> Iterator[str]:
        """The text of `ids` in pieces that join up to it, each as soon as it is certain.

        A character may span several tokens; until its last one comes, the text ends
        in U+FFFD. Only the tokens since the last piece but one are decoded again.
        """
        window: list[int] = []
        known = 0  # tokens of the window whose text is out; they give the rest its context
        for token in ids:
            window.append(token)
            before, text = self.decode(window[:known]), self.decode(window)
            if len(text) > len(before) and not text.endswith("\ufffd"):
                yield text[len(before) :]
                window, known = window[known:], len(window) - known
        before, text = self.decode(window[:known]), self.decode(window)
        if text != before:
            yield text[len(before) :]


def _tokenizers() -> ModuleType:
    try:
        import tokenizers
    except ImportError as error:
        raise DependencyError(
            "a text needs the library tokenizers, which is not installed",
            fix="Install it: pip install packimport[ort]. Or pass --tokens FILE.",
        ) from error
    module: ModuleType = tokenizers
    return module
