"""Chat templates: those of transformers' rules, and those that mean harm.

Expected texts are written out by hand from the templates.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from forward import chat
from forward.chat import read_messages, read_template, template_process
from forward.chat import render as render_in
from packimport.errors import DependencyError, DocumentError

pytest.importorskip("jinja2")

MESSAGES = [{"role": "user", "content": "Hi <é>"}, {"role": "assistant", "content": "Yo"}]
# ChatML, as SmolLM2's file has it, without its system turn.
CHATML = (
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + message['content']"
    " + '<|im_end|>' + '\n'}}{% endfor %}\n"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def render(template: str, messages: list[dict[str, str]], tokens: dict[str, str]) -> str:
    return render_in(template, tokens, messages, template_process())


def test_chatml() -> None:
    assert render(CHATML, MESSAGES, {}) == (
        "<|im_start|>user\nHi <é><|im_end|>\n<|im_start|>assistant\nYo<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_special_tokens_json_and_loop_controls() -> None:
    loop = "{% for m in messages %}{{ m | tojson }}{% break %}{% endfor %}"
    template = "{{ bos_token }}" + loop + "{{ eos_token }}"
    text = render(template, MESSAGES, {"bos_token": "<s>", "eos_token": "</s>"})
    assert text == '<s>{"role": "user", "content": "Hi <é>"}</s>'


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{ ''.__class__.__mro__ }}", "SecurityError"),
        ("{{ messages.append(1) }}", "SecurityError"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% for x in range(99999) %}{{ 'a' * 1000 }}{% endfor %}", "8388608 characters"),
        ("{% if %}", "TemplateSyntaxError"),
        ("{{ 1 // 0 }}", "ZeroDivisionError"),
        ("a" * (2**18 + 1), "too long"),
    ],
)
def test_what_a_template_may_not_do(template: str, message: str) -> None:
    with pytest.raises(DocumentError, match=message):
        render(template, MESSAGES, {})


def test_time_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "SECONDS", 2)
    loop = "{% for x in range(99999) %}{% for y in range(99999) %}{% endfor %}{% endfor %}"
    with pytest.raises(DocumentError, match="within 2 seconds"):
        render(loop, MESSAGES, {})


def test_memory_is_bounded() -> None:
    if sys.platform == "win32":
        pytest.skip("Windows has no such limit")
    with pytest.raises(DocumentError, match="MemoryError"):
        render("{{ ('a' * 2000000000) | length }}", MESSAGES, {})


def test_one_process_serves_many_messages() -> None:
    process = template_process()
    texts = [render_in("{{ messages[0].content }}", {}, [{"content": x}], process) for x in "ab"]
    assert texts == ["a", "b"]
    assert process.is_running


def test_without_jinja2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(DependencyError, match=r"pip install jinja2"):
        render(CHATML, MESSAGES, {})


@pytest.mark.parametrize(
    ("files", "template"),
    [
        ({"chat_template.jinja": "J", "tokenizer_config.json": {"chat_template": "T"}}, "J"),
        ({"tokenizer_config.json": {"chat_template": "T"}}, "T"),
        (
            {
                "tokenizer_config.json": {
                    "chat_template": [
                        {"name": "tool_use", "template": "U"},
                        {"name": "default", "template": "D"},
                    ]
                }
            },
            "D",
        ),
    ],
)
def test_where_the_template_is(tmp_path: Path, files: dict[str, Any], template: str) -> None:
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert read_template(tmp_path)[0] == template


def test_a_template_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"{{ \xff }}")
    with pytest.raises(DocumentError, match="not UTF-8 at byte 3"):
        read_template(tmp_path)


def test_special_tokens_are_texts_or_objects(tmp_path: Path) -> None:
    config = {"bos_token": {"content": "<s>"}, "eos_token": "</s>", "pad_token": None}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    (tmp_path / "chat_template.jinja").write_text("x", encoding="utf-8")
    assert read_template(tmp_path)[1] == {"bos_token": "<s>", "eos_token": "</s>"}


@pytest.mark.parametrize(
    "config", [{}, {"chat_template": [{"name": "rag", "template": "x"}]}, {"chat_template": 3}]
)
def test_no_template(tmp_path: Path, config: dict[str, Any]) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(DocumentError):
        read_template(tmp_path)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "no messages"),
        ({}, "#"),
        ([{"role": "user"}], "content"),
        ([{"role": "user", "content": 3}], "/0/content"),
        ([{"role": "user", "content": "x", "name": "y"}], "/0/name.*role and content"),
    ],
)
def test_messages_that_are_none(tmp_path: Path, value: object, message: str) -> None:
    path = tmp_path / "m.json"
    path.write_text(json.dumps(value), encoding="utf-8")
    with pytest.raises(DocumentError, match=message):
        read_messages(path)
