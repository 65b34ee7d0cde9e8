"""What `forward-serve` reads besides a pack: tokens, dumps and tokenizers of strangers."""

from __future__ import annotations

import contextlib
import io
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from attempts import sound_pack, state_of

import forward.cli

EVIL = b"cos\nsystem\n(S'touch evil'\ntR."


class Runs:
    """Unpickling it would make a folder."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("evil",)


def serve(*args: str | Path) -> tuple[int, str]:
    """`forward-serve` in this process: exit code and standard error."""
    err = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err):
        try:
            forward.cli.main([str(arg) for arg in args])
        except SystemExit as end:
            code = end.code
    assert isinstance(code, int)
    return code, err.getvalue()


def array_bytes(array: object) -> bytes:
    out = io.BytesIO()
    np.save(out, np.array([array], dtype=object), allow_pickle=True)
    return out.getvalue()


HEADER = b"\x93NUMPY\x01\x00"
ARRAYS = {
    "a pickle": pickle.dumps(Runs()),
    "a pickle of protocol 0": EVIL,
    "an array of objects": array_bytes(Runs()),
    "a zip": b"PK\x03\x04" + bytes(100),
    "a header that never closes": HEADER + b"\x10\x00{'descr': '<i8', ",
    "a header that is code": HEADER + b"\x20\x00__import__('os').mkdir('evil')  ",
    "a header of many brackets": HEADER + b"\xff\xff" + b"(" * 65535,
    "a petabyte": HEADER
    + b"\x46\x00{'descr': '<i8', 'fortran_order': False, 'shape': (99999999999999,), }\n",
    "a negative shape": HEADER
    + b"\x46\x00{'descr': '<i8', 'fortran_order': False, 'shape': (-1,), }           \n",
    "nothing": b"",
    "a huge header": b"\x93NUMPY\x02\x00\xff\xff\xff\x7f",
}


@pytest.mark.parametrize("case", ARRAYS)
def test_tokens_of_a_stranger(case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pack = sound_pack(tmp_path / "p")
    (tmp_path / "tokens.npy").write_bytes(ARRAYS[case])
    before = state_of(tmp_path)
    code, err = serve(pack, "--dump-logits", tmp_path / "out", "--tokens", tmp_path / "tokens.npy")
    assert code == 3, err
    assert state_of(tmp_path) == before


@pytest.mark.parametrize("case", ARRAYS)
@pytest.mark.parametrize("file", ["tokens.npy", "logits.npy"])
def test_a_dump_of_a_stranger(
    file: str, case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pack = sound_pack(tmp_path / "p")
    (tmp_path / "tokens.json").write_text("[1, 2, 3]", encoding="utf-8")
    made = serve(pack, "--dump-logits", tmp_path / "d", "--tokens", tmp_path / "tokens.json")
    assert made[0] == 0, made
    (tmp_path / "d" / file).write_bytes(ARRAYS[case])
    code, err = serve("compare", tmp_path / "d", tmp_path / "d")
    assert code == 3, err
    assert not (tmp_path / "evil").exists()


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"[" * 100_000, b"\x80\x04K\x01.", b'{"model": null}', b'{"version": "1.0"'],
)
def test_a_tokenizer_of_a_stranger(content: bytes, tmp_path: Path) -> None:
    pack = sound_pack(tmp_path / "p")
    (pack / "tokenizer.json").write_bytes(content)
    code, err = serve(pack, "--dump-logits", tmp_path / "out", "--prompt", "hello")
    assert code == 3, err


def test_a_tokenizer_that_is_too_large(tmp_path: Path) -> None:
    pack = sound_pack(tmp_path / "p")
    with (pack / "tokenizer.json").open("wb") as file:
        file.truncate(2**40)
    code, err = serve(pack, "--dump-logits", tmp_path / "out", "--prompt", "hello")
    assert (code, "too large" in err) == (3, True)
