"""Tokenizer: a tokenizer.json, run by the library `tokenizers` in a process with limits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np

from forward.dump import Tokens
from forward.limited import Limited
from packimport.errors import DependencyError, DocumentError

TOKENIZER = "tokenizer.json"

# Those of published models have up to 35 MB.
MAX_BYTES = 1 << 26
# Of any text: a book of 3 MB takes 3 seconds.
SECONDS = 60


class Tokenizer:
    """A tokenizer.json. It is read, and its process started, by the first text.

    Every method raises DependencyError without the library, and DocumentError for a file
    that is missing, broken, or takes more time or memory than any should.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        missing = DependencyError(
            "a text needs the library tokenizers, which is not installed",
            fix="Install it: pip install tokenizers. Or pass --tokens FILE.",
        )
        self._process = Limited("tokenizers", "the tokenizer", missing, str(path))

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
        ids: list[int] = self._loaded().ask("encode", SECONDS, text=text, special=special)
        return np.array(ids, dtype=np.int64)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`, special tokens left out."""
        return self.decode_all([list(ids)])[0]

    def decode_all(self, lists: Sequence[Sequence[int]]) -> list[str]:
        """The text of each list of ids, special tokens left out."""
        plain = [[int(token) for token in ids] for ids in lists]
        texts: list[str] = self._loaded().ask("decode", SECONDS, lists=plain)
        return texts

    def stream(self, ids: Iterable[int]) -> Iterator[str]:
        """The text of `ids` in pieces that join up to it, each as soon as it is certain.

        A character may span several tokens; until its last one comes, the text ends
        in U+FFFD. Only the tokens since the last piece but one are decoded again.
        """
        window: list[int] = []
        known = 0  # tokens of the window whose text is out; they give the rest its context
        for token in ids:
            window.append(token)
            before, text = self.decode_all([window[:known], window])
            if len(text) > len(before) and not text.endswith("\ufffd"):
                yield text[len(before) :]
                window, known = window[known:], len(window) - known
        before, text = self.decode_all([window[:known], window])
        if text != before:
            yield text[len(before) :]

    def _loaded(self) -> Limited:
        """The process, once it has read the file."""
        if not self._process.is_running:
            if not self.path.is_file():
                raise DocumentError(
                    "there is no tokenizer.json, which a text needs",
                    place=str(self.path),
                    fix="Put the model's tokenizer.json there, or pass --tokens FILE.",
                )
            if self.path.stat().st_size > MAX_BYTES:
                raise DocumentError("the file is too large", place=str(self.path))
            try:
                self._process.ask("load", SECONDS, path=str(self.path.absolute()))
            except DocumentError:
                self._process.close()
                raise
        return self._process
