"""Token ids from files and texts; texts from token ids."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st

from forward.prompt import Given, read_prompts, read_tokens
from forward.text_file import read_text
from forward.tokenizer import Tokenizer
from packimport.errors import DependencyError, DocumentError, DumpError, PackimportError, UsageError


@pytest.fixture(scope="session")
def byte_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level tokenizer of 256 bytes and one special token: a character is 1 to 4 tokens."""
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocab = {character: i for i, character in enumerate(alphabet)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=32)
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@pytest.mark.parametrize("dtype", ["<i8", ">i4", "u2", "i1"])
def test_npy_of_any_integers(tmp_path: Path, dtype: str) -> None:
    np.save(tmp_path / "t.npy", np.array([3, 1, 4], dtype=dtype))
    tokens = read_tokens(tmp_path / "t.npy")
    assert tokens.dtype == np.int64
    assert tokens.tolist() == [3, 1, 4]


@pytest.mark.parametrize(
    "array",
    [np.ones(3), np.ones((1, 3), int), np.array(["a"]), np.array([True]), np.array(3)],
)
def test_npy_of_anything_else_is_refused(tmp_path: Path, array: Any) -> None:
    np.save(tmp_path / "t.npy", array)
    with pytest.raises(DumpError, match=r"not a list of token ids.*allowed: integers"):
        read_tokens(tmp_path / "t.npy")


def test_npy_that_is_pickled_broken_or_missing(tmp_path: Path) -> None:
    np.save(tmp_path / "object.npy", np.array([{}], dtype=object), allow_pickle=True)
    (tmp_path / "broken.npy").write_bytes(b"\x93NUMPY")
    for name in ("object.npy", "broken.npy"):
        with pytest.raises(DumpError, match=f"{name}: not a readable"):
            read_tokens(tmp_path / name)
    with pytest.raises(DumpError, match=r"missing\.npy: the file is missing"):
        read_tokens(tmp_path / "missing.npy")


def test_json_list(tmp_path: Path) -> None:
    (tmp_path / "t.json").write_text("[3, 1, 4]", "utf-8")
    assert read_tokens(tmp_path / "t.json").tolist() == [3, 1, 4]


@pytest.mark.parametrize(
    ("text", "place"),
    [("[1, 2.5]", "#/1"), ("[true]", "#/0"), ('["1"]', "#/0"), ("{}", "#"), ("[1", "t.json")],
)
def test_json_of_anything_else_is_refused(tmp_path: Path, text: str, place: str) -> None:
    (tmp_path / "t.json").write_text(text, "utf-8")
    with pytest.raises(DocumentError, match=place):
        read_tokens(tmp_path / "t.json")


def test_text_keeps_its_line_ends_and_loses_its_mark(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes("\ufeffä\r\nb\n".encode())
    assert read_text(tmp_path / "t.txt") == "ä\r\nb\n"


def test_text_that_is_not_utf8_or_missing(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes(b"ab\xff")
    with pytest.raises(DocumentError, match=r"not UTF-8 at byte 2\. Save the file as UTF-8"):
        read_text(tmp_path / "t.txt")
    with pytest.raises(DocumentError, match=r"no\.txt: can't be read"):
        read_text(tmp_path / "no.txt")


@pytest.mark.parametrize("values", [(None, None, None), (Path("a"), "b", None), (None, "", "c")])
def test_one_thing_is_given(values: tuple[Any, ...]) -> None:
    with pytest.raises(UsageError, match="--tokens FILE, --prompt TEXT or --prompt-file F"):
        Given(*values)


def test_given_text_and_file_are_the_same(byte_tokenizer: Path, tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes("Grüße".encode())
    for given_one in (Given(prompt="Grüße"), Given(prompt_file=tmp_path / "t.txt")):
        tokens = given_one.read(Tokenizer(byte_tokenizer))
        assert tokens.dtype == np.int64
        assert len(tokens) == 7, "bytes of the text: neither cut to 4 nor padded to 32"


def test_an_empty_text_has_no_tokens(byte_tokenizer: Path) -> None:
    assert Given(prompt="").read(Tokenizer(byte_tokenizer)).tolist() == []


@pytest.fixture(scope="session")
def tokenizer(byte_tokenizer: Path) -> Tokenizer:
    return Tokenizer(byte_tokenizer)


@settings(max_examples=200, deadline=None)
@given(text=st.text(max_size=40))
def test_the_pieces_of_a_stream_join_up(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text).tolist()
    assert tokenizer.decode(ids) == text
    assert "".join(tokenizer.stream(ids)) == text


def test_a_character_comes_when_it_is_whole(tokenizer: Tokenizer) -> None:
    seen: list[str] = []
    pieces = tokenizer.stream(iter(tokenizer.encode("aé€😀z").tolist()))
    seen.extend(pieces)
    assert seen == ["a", "é", "€", "😀", "z"]


def test_a_stream_that_ends_within_a_character_shows_that(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("ab😀").tolist()[:-1]
    assert "".join(tokenizer.stream(ids)) == "ab\ufffd"


def test_bytes_that_are_no_text(byte_tokenizer: Path) -> None:
    with pytest.raises(DocumentError, match=r"not Unicode at character 1.*--prompt-file F"):
        Given(prompt="a\udcff").read(Tokenizer(byte_tokenizer))


def test_special_tokens_are_left_out(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode([*tokenizer.encode("a"), 256]) == "a"


def test_a_missing_or_broken_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match=r"there is no tokenizer\.json.*--tokens FILE"):
        Tokenizer(tmp_path / "tokenizer.json").encode("a")
    (tmp_path / "tokenizer.json").write_text(json.dumps({"version": "1.0"}), "utf-8")
    with pytest.raises(DocumentError, match="not a tokenizer"):
        Tokenizer(tmp_path / "tokenizer.json").encode("a")


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch, byte_tokenizer: Path) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(DependencyError, match=r"pip install tokenizers"):
        Given(prompt="a").read(Tokenizer(byte_tokenizer))


def test_tokens_need_no_tokenizer(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    (tmp_path / "t.json").write_text("[1]", "utf-8")
    tokenizer = Tokenizer(tmp_path / "no.json")
    assert Given(tokens=tmp_path / "t.json").read(tokenizer).tolist() == [1]
    assert issubclass(DependencyError, PackimportError)


def test_a_line_of_prompts_may_hold_what_ends_lines_elsewhere(
    tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """JSON escapes the control characters below U+0020 alone."""
    text = "one\u2028two\u0085three\u2029"
    line = json.dumps({"prompt": text}, ensure_ascii=False)
    path = tmp_path / "prompts.jsonl"
    path.write_bytes(f"{line}\r\n{line}\n".encode())
    assert [tokens.tolist() for tokens in read_prompts(path, tokenizer)] == [
        tokenizer.encode(text).tolist()
    ] * 2
