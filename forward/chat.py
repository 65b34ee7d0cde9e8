"""Chat: messages ─▶ a text, by the chat template of a pack.

A template is a stranger's program. jinja2's immutable sandbox keeps it from Python's
objects; a process of its own (`limited`) keeps it from using up time and memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from forward.limited import Limited
from forward.text_file import read_text
from packimport.errors import DependencyError, DocumentError
from packimport.pack.documents import Document, load_json

TEMPLATE, TOKENIZER_CONFIG = "chat_template.jinja", "tokenizer_config.json"

# Templates of published models have less than 40 000 characters.
MAX_TEMPLATE = 1 << 18
SECONDS = 10

Message = Mapping[str, str]


def read_messages(path: Path) -> tuple[Message, ...]:
    """A JSON list of objects with role and content, both texts."""
    return messages_of(Document(str(path), load_json(path)))


def messages_of(document: Document) -> tuple[Message, ...]:
    """The same of a value in a document; a key that is neither is refused."""
    messages = []
    for item in document.items():
        for key, field in item.fields().items():
            if key not in ("role", "content"):
                raise field.error("not a key of a message", allowed="role and content")
        messages.append({key: item.require(key).text() for key in ("role", "content")})
    if not messages:
        raise document.error("no messages", allowed="one or more")
    return tuple(messages)


def read_template(folder: Path) -> tuple[str, dict[str, str]]:
    """The chat template of a folder, and the special tokens that it may name.

    chat_template.jinja wins over the one in tokenizer_config.json, as in transformers.
    Raises DocumentError where there is none, or several without a default.
    """
    config = Document(TOKENIZER_CONFIG, {})
    if (folder / TOKENIZER_CONFIG).is_file():
        config = Document(TOKENIZER_CONFIG, load_json(folder / TOKENIZER_CONFIG))
    tokens = {}
    for name in ("bos_token", "eos_token", "unk_token", "pad_token"):
        value = config.get(name)
        if value is not None and value.value is not None:
            value = value.require("content") if value.is_object else value
            tokens[name] = value.text()
    if (folder / TEMPLATE).is_file():
        if (folder / TEMPLATE).stat().st_size > 4 * MAX_TEMPLATE:
            raise DocumentError("the file is too large", place=str(folder / TEMPLATE))
        return read_text(folder / TEMPLATE), tokens
    stated = config.get("chat_template")
    if stated is None:
        raise DocumentError(
            "the pack has no chat template",
            place=str(folder),
            allowed=f"{TEMPLATE}, or chat_template in {TOKENIZER_CONFIG}",
            fix="Write the prompt out and pass --prompt-file F.",
        )
    if not stated.is_list:
        return stated.text(), tokens
    named = {
        item.require("name").text(): item.require("template").text() for item in stated.items()
    }
    if "default" not in named:
        raise stated.error("several chat templates and none named default", allowed="default")
    return named["default"], tokens


class ChatTemplate:
    """The chat template of a folder; it is read when it is first used."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._read: tuple[str, dict[str, str]] | None = None
        self._process = template_process()

    def text(self, messages: Sequence[Message]) -> str:
        """The text of `messages`. Raises as `read_template` and `render` do."""
        self._read = self._read or read_template(self._folder)
        return render(*self._read, messages, self._process)


def template_process() -> Limited:
    """A process that runs templates."""
    missing = DependencyError(
        "chat messages need jinja2, which is not installed",
        fix="Install it: pip install jinja2 tokenizers.",
    )
    return Limited("jinja2", "the chat template", missing)


def render(
    template: str, tokens: Mapping[str, str], messages: Sequence[Message], process: Limited
) -> str:
    """The text of `messages` with the assistant's turn begun.

    Raises DependencyError without jinja2, DocumentError where the template fails, or takes
    more time or room than any should.
    """
    if len(template) > MAX_TEMPLATE:
        raise DocumentError(
            "the chat template is too long",
            found=f"{len(template)} characters",
            allowed=f"{MAX_TEMPLATE}",
        )
    text: str = process.ask(
        "render", SECONDS, template=template, messages=list(messages), tokens=dict(tokens)
    )
    return text
