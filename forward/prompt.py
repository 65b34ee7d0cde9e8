"""Prompt: token ids from a file or from a text, and texts from token ids."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from forward.dump import Tokens
from packimport.errors import DependencyError, DocumentError, DumpError, UsageError
from packimport.pack.documents import MAX_BYTES, Document, load_json

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
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise DumpError(f"not a readable .npy file: {error}", place=str(path)) from error
    if not isinstance(array, np.ndarray) or array.ndim != 1 or array.dtype.kind not in "iu":
        raise DumpError(
            "not a list of token ids",
            place=str(path),
            found=f"{array.dtype} {list(array.shape)}" if isinstance(array, np.ndarray) else None,
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
    """

    tokens: Path | None = None
    prompt: str | None = None
    prompt_file: Path | None = None

    def __post_init__(self) -> None:
        if sum(value is not None for value in (self.tokens, self.prompt, self.prompt_file)) != 1:
            raise UsageError(
                "say what to run, once", allowed="--tokens FILE, --prompt TEXT or --prompt-file F"
            )

    def read(self, tokenizer: Path) -> Tokens:
        """The ids, int64 [count]; a text is tokenized by the tokenizer.json at `tokenizer`."""
        if self.tokens is not None:
            return read_tokens(self.tokens)
        text = self.prompt if self.prompt_file is None else read_text(self.prompt_file)
        return Tokenizer(tokenizer).encode(text or "")


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

    def encode(self, text: str) -> Tokens:
        """int64 [count], with the special tokens that the file adds by itself."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            # Bytes of a command line that are no text arrive as lone surrogates.
            raise DocumentError(
                f"the text is not Unicode at character {error.start}",
                fix="Save it as UTF-8 and pass --prompt-file F.",
            ) from error
        return np.array(self._tokenizer.encode(text).ids, dtype=np.int64)

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
