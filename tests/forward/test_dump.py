"""Dumps on disk: what is written, what is refused, and that a crash leaves none."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from forward import sink
from forward.dump import SCHEMA, read_dump
from forward.dump_writer import Provenance, write_dump
from forward.steps import Block, plan
from packimport.errors import DocumentError, DumpError
from packimport.pack.documents import load_json, validate

TOKENS = np.array([3, 1, 4, 1, 5, 9, 2, 6])
LOGITS = np.random.default_rng(0).normal(size=(8, 11)).astype(np.float32)
ENGINE = {
    "name": "onnxruntime",
    "version": "1.32.0",
    "provider": "CPUExecutionProvider",
    "graph_optimization": "all",
    "threads": None,
}


def provenance() -> Provenance:
    files = {"model.onnx": (2, "a" * 64), "genai_config.json": (3, "b" * 64)}
    return Provenance(engine=ENGINE, kind="pack", path="some/pack", files=files)


def blocks(logits: NDArray[Any] = LOGITS, decode: int = 0, chunk: int = 3) -> Iterator[Block]:
    for step in plan(len(logits), decode, chunk):
        yield Block(step, logits[step.start : step.stop])


def write(folder: Path, decode: int = 0) -> Path:
    write_dump(folder, TOKENS, blocks(decode=decode), provenance, 3)
    return folder


def test_numpy_alone_reads_it(tmp_path: Path) -> None:
    folder = write(tmp_path / "d", decode=2)
    logits, tokens = np.load(folder / "logits.npy"), np.load(folder / "tokens.npy")
    assert logits.dtype == np.dtype("<f4")
    assert tokens.dtype == np.dtype("<i8")
    assert np.array_equal(logits, LOGITS)
    assert np.array_equal(tokens, TOKENS)
    assert sorted(p.name for p in folder.iterdir()) == ["dump.json", "logits.npy", "tokens.npy"]
    assert [p.name for p in tmp_path.iterdir()] == ["d"]


def test_dump_json(tmp_path: Path) -> None:
    value: Any = load_json(write(tmp_path / "d", decode=2) / "dump.json")
    validate(value, SCHEMA, "dump.json")
    assert value["engine"] == ENGINE
    assert value["source"]["path"] == "some/pack"
    assert [f["name"] for f in value["source"]["files"]] == ["genai_config.json", "model.onnx"]
    little_endian = b"".join(int(t).to_bytes(8, "little") for t in TOKENS)
    assert value["tokens"] == {"count": 8, "sha256": hashlib.sha256(little_endian).hexdigest()}
    assert value["steps"] == {"prefill": 6, "decode": 2, "chunk": 3}
    assert value["logits"] == {"dtype": "float32", "shape": [8, 11]}


def test_a_source_whose_path_is_no_text(tmp_path: Path) -> None:
    """Python names the byte FF of a file name U+DCFF, which UTF-8 does not have."""
    source = replace(provenance(), path="pack\udcff")
    write_dump(tmp_path / "d", TOKENS, blocks(), lambda: source)
    text = (tmp_path / "d/dump.json").read_text(encoding="utf-8")
    assert json.loads(text)["source"]["path"] == "pack\\udcff"
    assert np.array_equal(read_dump(tmp_path / "d").logits[:], LOGITS)


def test_two_runs_write_the_same_bytes(tmp_path: Path) -> None:
    one, two = write(tmp_path / "one"), write(tmp_path / "two")
    for path in one.iterdir():
        assert path.read_bytes() == (two / path.name).read_bytes()


def test_reading(tmp_path: Path) -> None:
    dump = read_dump(write(tmp_path / "d", decode=2))
    assert (dump.positions, dump.vocab, dump.prefill) == (8, 11, 6)
    assert dump.name == str(tmp_path / "d")
    assert np.array_equal(dump.tokens, TOKENS)
    for start, stop in ((0, 8), (0, 1), (3, 7), (7, 8)):
        assert np.array_equal(dump.logits[start:stop], LOGITS[start:stop])


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_half_precision_is_widened_exactly(tmp_path: Path, dtype: Any) -> None:
    narrow = LOGITS.astype(dtype)
    write_dump(tmp_path / "d", TOKENS, blocks(narrow), provenance)
    assert np.array_equal(np.load(tmp_path / "d" / "logits.npy"), narrow.astype(np.float32))


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_rows_without_a_softmax_are_refused(tmp_path: Path, value: float, dtype: Any) -> None:
    wrong = LOGITS.astype(dtype)
    wrong[5, 3] = value
    with pytest.raises(DumpError, match="the run's logits have no softmax at position 5"):
        write_dump(tmp_path / "d", TOKENS, blocks(wrong), provenance)
    assert not list(tmp_path.iterdir())


def test_entries_that_can_not_be_are_kept(tmp_path: Path) -> None:
    masked = LOGITS.copy()
    masked[:, 4:] = -np.inf
    write_dump(tmp_path / "d", TOKENS, blocks(masked), provenance)
    assert np.array_equal(np.load(tmp_path / "d" / "logits.npy"), masked)


@pytest.mark.parametrize("kind", ["folder", "file", "empty folder", "dangling link"])
def test_a_taken_place_is_refused(tmp_path: Path, kind: str) -> None:
    place = tmp_path / "d"
    if kind == "file":
        place.write_text("mine")
    elif kind == "dangling link":
        place.symlink_to(tmp_path / "nowhere")
    else:
        place.mkdir()
        if kind == "folder":
            (place / "mine").write_text("mine")
    with pytest.raises(DumpError, match="the place of the dump is taken"):
        write(place)
    assert [p.name for p in tmp_path.iterdir()] == ["d"]


def test_a_missing_parent_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="does not exist"):
        write(tmp_path / "no" / "d")


@pytest.mark.parametrize("rows", [7, 9])
def test_too_few_or_many_rows_leave_nothing(tmp_path: Path, rows: int) -> None:
    with pytest.raises(DumpError, match=f"the run gave {rows} rows of logits for 8 tokens"):
        write_dump(tmp_path / "d", TOKENS, blocks(np.ones((rows, 11))), provenance)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("moment", ["run", "rename"])
def test_another_run_is_faster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    place, real = tmp_path / "d", Path.rename

    def taken() -> None:
        place.mkdir()
        (place / "mine").write_text("mine")

    def slow() -> Iterator[Block]:
        yield from blocks()
        if moment == "run":
            taken()

    def rename(path: Path, target: Path) -> Path:
        taken()
        return real(path, target)

    if moment == "rename":
        monkeypatch.setattr(Path, "rename", rename)
    with pytest.raises(DumpError, match="the place of the dump is taken"):
        write_dump(place, TOKENS, slow(), provenance)
    assert [p.name for p in tmp_path.iterdir()] == ["d"]
    assert [p.name for p in place.iterdir()] == ["mine"]


def test_a_failing_run_leaves_nothing(tmp_path: Path) -> None:
    def failing() -> Iterator[Block]:
        yield from blocks(LOGITS[:3])
        assert list(tmp_path.iterdir())
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_dump(tmp_path / "d", TOKENS, failing(), provenance)
    assert not list(tmp_path.iterdir())


def test_a_full_disk_is_seen_before_it_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"free": 8 * 11 * 4 - 1})
    monkeypatch.setattr(sink.shutil, "disk_usage", lambda _: usage)
    with pytest.raises(DumpError, match=r"too full.*351 bytes free; allowed: 352 bytes"):
        write(tmp_path / "d")
    assert not list(tmp_path.iterdir())


def stopped(folder: Path, number: int) -> int:
    """The exit code of a process that gets a signal while it writes a dump."""
    script = """
import sys, time
from pathlib import Path
sys.path[:0] = ["tests/forward"]
from test_dump import *
def slow():
    for block in blocks():
        yield block
        print("block", flush=True)
        time.sleep(60)
write_dump(Path(sys.argv[1]), TOKENS, slow(), provenance)
"""
    root = Path(__file__).parent.parent.parent
    command = [sys.executable, "-c", script, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=root) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"block\n"
        time.sleep(0.05)
        process.send_signal(number)
    return process.returncode


@pytest.mark.skipif(os.name == "nt", reason="SIGKILL")
def test_a_killed_run_leaves_no_dump(tmp_path: Path) -> None:
    assert stopped(tmp_path / "d", signal.SIGKILL) == -signal.SIGKILL
    assert not (tmp_path / "d").exists()
    write(tmp_path / "d")


@pytest.mark.skipif(os.name == "nt", reason="SIGHUP")
@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_run_that_is_asked_to_end_leaves_nothing(tmp_path: Path, name: str) -> None:
    number = getattr(signal, name)
    assert stopped(tmp_path / "d", number) == 128 + number
    assert not list(tmp_path.iterdir())


def _cut(folder: Path) -> None:
    data = (folder / "logits.npy").read_bytes()
    (folder / "logits.npy").write_bytes(data[:-4])


def _other_tokens(folder: Path) -> None:
    np.save(folder / "tokens.npy", TOKENS[::-1].astype("<i8"))


def _double(folder: Path) -> None:
    np.save(folder / "logits.npy", LOGITS.astype(np.float64))


def _transposed(folder: Path) -> None:
    np.save(folder / "logits.npy", np.asfortranarray(LOGITS))


def _other_shape(folder: Path) -> None:
    np.save(folder / "logits.npy", LOGITS[:, :5].copy())


def _pickled(folder: Path) -> None:
    np.save(folder / "tokens.npy", np.array([{}], dtype=object), allow_pickle=True)


def _flat(folder: Path) -> None:
    np.save(folder / "tokens.npy", TOKENS[None].astype("<i8"))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (
            lambda d: (d / "logits.npy").unlink(),
            r"logits\.npy: the file is missing\. Make it again",
        ),
        (
            lambda d: (d / "tokens.npy").unlink(),
            r"tokens\.npy: the file is missing\. Make it again",
        ),
        (lambda d: (d / "logits.npy").write_bytes(b"x" * 200), "not a readable .npy file"),
        (_cut, "not as long as its header says"),
        (_other_tokens, "tokens.npy is not the file that dump.json describes"),
        (_double, "float64"),
        (_transposed, "not an array of logits"),
        (_other_shape, r"another shape.*\[8, 5\]; allowed: \[8, 11\]"),
        (_pickled, "not a readable .npy file"),
        (_flat, "not an int64 array of one dimension"),
    ],
)
def test_damage_is_named(tmp_path: Path, damage: Any, message: str) -> None:
    folder = write(tmp_path / "d")
    damage(folder)
    with pytest.raises(DumpError, match=message):
        read_dump(folder)


def test_steps_of_other_tokens_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "d") / "dump.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    document["steps"] |= {"prefill": 1}
    path.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(DumpError, match=r"dump\.json#/steps: .*found 1 and .* add up to 8"):
        read_dump(tmp_path / "d")


def test_what_is_no_dump(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match="no such dump"):
        read_dump(tmp_path / "nothing")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DumpError, match=r"empty: no dump: there is no dump\.json in it"):
        read_dump(tmp_path / "empty")


@pytest.mark.parametrize(
    ("key", "value"), [("schema_version", 2), ("steps", {"prefill": "6"}), ("more", 1)]
)
def test_a_dump_json_of_another_form_is_refused(tmp_path: Path, key: str, value: Any) -> None:
    path = write(tmp_path / "d") / "dump.json"
    changed = {**json.loads(path.read_text(encoding="utf-8")), key: value}
    path.write_text(json.dumps(changed), encoding="utf-8")
    with pytest.raises(DocumentError, match=r"dump\.schema\.json"):
        read_dump(tmp_path / "d")
