"""Tokenizers and chat templates of strangers end in a clear error, in bounded time and memory.

They run in a process of their own (`forward.limited`): what aborts or fills that one is
one line here.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from attempts import sound_pack, state_of
from processes import lives
from test_hostile_runs import serve

from forward import chat, limited, tokenizer
from forward.tokenizer import Tokenizer
from packimport.errors import DocumentError

bounded = pytest.mark.skipif(sys.platform != "linux", reason="needs a limit of memory")
SECONDS = 60


def file_of(**parts: Any) -> bytes:
    """A tokenizer of two words, with some parts replaced."""
    whole = {
        "version": "1.0",
        "added_tokens": [],
        "model": {"type": "WordLevel", "vocab": {"a": 0, "b": 1}, "unk_token": "a"},
        **parts,
    }
    return json.dumps(whole).encode()


def split(pattern: str) -> dict[str, object]:
    return {
        "type": "Split",
        "pattern": {"Regex": pattern},
        "behavior": "Isolated",
        "invert": False,
    }


def nested(key: str, kind: str, depth: int) -> bytes:
    """A part that holds itself, `depth` times."""
    head = f'{{"type": "{kind}", "{key}": ['.encode()
    return file_of().replace(b"{", b'{"normalizer": ' + head * depth + b"]}" * depth + b", ", 1)


def doubling(times: int) -> dict[str, object]:
    step = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}
    return {"type": "Sequence", "normalizers": [step] * times}


REFUSED: dict[str, Callable[[], bytes]] = {
    "nested deep": lambda: nested("normalizers", "Sequence", 100_000),
    "a catastrophic pattern": lambda: file_of(pre_tokenizer=split("(a+)+$")),
    "a pattern nested deep": lambda: file_of(pre_tokenizer=split("(a|" * 200_000 + ")" * 200_000)),
    "a pattern that is none": lambda: file_of(pre_tokenizer=split("(")),
    "a model of no kind": lambda: file_of(model={"type": "\x1b[2J"}),
    "a merge of no token": lambda: file_of(
        model={"type": "BPE", "vocab": {"a": 0}, "merges": [["a", "z"]]}
    ),
    "an unknown token past the end": lambda: file_of(
        model={"type": "Unigram", "vocab": [["a", -1.0]], "unk_id": 99}
    ),
    "a library that panics": lambda: file_of(
        normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAA"}
    ),
    "a library that aborts": lambda: file_of(
        normalizer={"type": "Precompiled", "precompiled_charsmap": "/////w=="}
    ),
    "UTF-16": lambda: file_of().decode().encode("utf-16"),
}
# Each fills the memory with what a small file, or a short text, becomes.
TOO_LARGE: dict[str, Callable[[], bytes]] = {
    "a text that grows": lambda: file_of(normalizer=doubling(5)),
    "a prefix of 30 MB": lambda: file_of(
        normalizer={"type": "Prepend", "prepend": "a" * 30_000_000}
    ),
    "a vocabulary of millions": lambda: (
        b'{"version": "1.0", "model": {"type": "WordLevel", "unk_token": "0", "vocab": {'
        + b",".join(b'"%x":%d' % (i, i) for i in range(3_500_000))
        + b"}}}"
    ),
}


def refused(pack: Path, out: Path, text: str) -> str:
    """Both ways to a text end with exit code 3 and one line, and write nothing."""
    before = state_of(pack)
    began = time.monotonic()
    for way in (("--dump-logits", out), ("--generate", "1")):
        code, err = serve(pack, *way, "--prompt", text)
        assert (code, err.count("\n")) == (3, 1), err
        assert "tokenizer" in err
        assert all(c.isprintable() or c == "\n" for c in err)
    assert time.monotonic() - began < SECONDS
    assert not out.exists()
    assert state_of(pack) == before
    return err


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str, tmp_path: Path) -> None:
    pack = sound_pack(tmp_path / "p")
    (pack / "tokenizer.json").write_bytes(REFUSED[case]())
    refused(pack, tmp_path / "out", "a" * 60 + "b")


@bounded
@pytest.mark.parametrize("case", TOO_LARGE)
def test_memory_is_bounded(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Less than real ones are given: the cases need not be as large.
    monkeypatch.setattr(limited, "MEMORY", 400 << 20)
    pack = sound_pack(tmp_path / "p")
    (pack / "tokenizer.json").write_bytes(TOO_LARGE[case]())
    assert "takes more than 400 MiB" in refused(pack, tmp_path / "out", "a" * 100)


def test_time_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer, "SECONDS", 2)
    pack = sound_pack(tmp_path / "p")
    # Each run of a's takes millions of steps, which is within the library's own limit.
    (pack / "tokenizer.json").write_bytes(file_of(pre_tokenizer=split("(a+)+$|.")))
    said = refused(pack, tmp_path / "out", ("a" * 22 + "b") * 1000)
    assert "did not end within 2 seconds" in said


def test_a_text_that_grows_when_it_is_decoded(tmp_path: Path) -> None:
    grows = {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 10_000_000}
    (tmp_path / "tokenizer.json").write_bytes(file_of(decoder=grows))
    with pytest.raises(DocumentError, match="more than 8388608 characters"):
        Tokenizer(tmp_path / "tokenizer.json").decode([0])


def test_ids_that_no_token_has(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(file_of())
    small = Tokenizer(tmp_path / "tokenizer.json")
    assert small.decode([5]) == ""
    for token in (2**40, -1):
        with pytest.raises(DocumentError, match="OverflowError"):
            small.decode([token])
    assert small.encode("b").tolist() == [1], "the process goes on after a refusal"


def test_what_broke_is_started_anew(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(REFUSED["a library that aborts"]())
    one = Tokenizer(tmp_path / "tokenizer.json")
    for _ in range(2):
        with pytest.raises(DocumentError, match="breaks what runs it"):
            one.encode("a")
    (tmp_path / "tokenizer.json").write_bytes(file_of())
    assert one.encode("b").tolist() == [1]


def test_threads_take_turns(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(file_of(pre_tokenizer={"type": "WhitespaceSplit"}))
    one = Tokenizer(tmp_path / "tokenizer.json")
    one.encode("a")
    texts = ["b " * count for count in range(100)]
    with ThreadPoolExecutor(8) as pool:
        counts = [len(ids) for ids in pool.map(one.encode, texts)]
    assert counts == list(range(100))


@bounded
def test_nothing_is_written_and_no_process_stays(tmp_path: Path) -> None:
    """A template that got out of its sandbox would still write no file."""
    process = chat.template_process()
    process.ask("render", 10, template="x", messages=[], tokens={})
    child = process._child
    assert child is not None
    limits = Path(f"/proc/{child.pid}/limits").read_text(encoding="ascii")
    most = {line[:26].strip(): line[26:].split()[0] for line in limits.splitlines()[1:]}
    assert most["Max file size"] == most["Max core file size"] == "0"
    assert most["Max address space"] == str(limited.MEMORY)
    assert int(most["Max cpu time"]) <= 12
    del process
    assert child.returncode is not None


ORPHAN = """
import subprocess
import sys
from pathlib import Path
from forward import limited, tokenizer
limited._Watch.run = lambda self: None
one = tokenizer.Tokenizer(Path(sys.argv[1]))
one.encode("b")
print(one._process._child.pid, flush=True)
if sys.argv[2] == "busy":
    tokenizer.SECONDS = 1
    one.encode(("a" * 22 + "b") * 1000)
sys.stdin.read()
"""


@bounded
@pytest.mark.parametrize("when", ["idle", "busy"])
def test_the_process_ends_when_its_parent_is_killed(when: str, tmp_path: Path) -> None:
    """An idle one by the end of its input; a busy one, too late for that, by its processor time.

    Its parent ends it by no clock here: that of the wall may be faster than a busy machine.
    """
    path = tmp_path / "tokenizer.json"
    path.write_bytes(file_of(pre_tokenizer=split("(a+)+$|.")))
    with subprocess.Popen(
        [sys.executable, "-c", ORPHAN, str(path), when],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    ) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        time.sleep(0.3)
        assert lives(child)
        parent.kill()
    deadline = time.monotonic() + SECONDS
    while lives(child):
        assert time.monotonic() < deadline
        time.sleep(0.05)
