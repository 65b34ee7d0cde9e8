"""Smaller dumps: half precision, some positions, the largest logits; numpy alone reads them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from forward.compare import compare
from forward.dump import SCHEMA, read_dump
from forward.dump_writer import Provenance, write_dump
from forward.form import Form, parse_positions
from forward.steps import Block, plan
from packimport.errors import DumpError, UsageError
from packimport.pack.documents import load_json, validate

COUNT, VOCAB = 30, 25
TOKENS = np.random.default_rng(1).integers(0, VOCAB, COUNT)
LOGITS = np.random.default_rng(0).normal(0, 3, size=(COUNT, VOCAB)).astype(np.float32)


def provenance() -> Provenance:
    engine = {"name": "imported", "format": "npy"}
    return Provenance(engine=engine, kind="file", path="x", files={"x": (1, "a" * 64)})


def blocks(logits: NDArray[np.float32] = LOGITS) -> Iterator[Block]:
    for step in plan(COUNT, 2, 7):
        yield Block(step, logits[step.start : step.stop])


def write(folder: Path, form: Form, logits: NDArray[np.float32] = LOGITS) -> Path:
    write_dump(folder, TOKENS, blocks(logits), provenance, 7, form=form)
    validate(load_json(folder / "dump.json"), SCHEMA, "dump.json")
    return folder


def test_half_precision(tmp_path: Path) -> None:
    folder = write(tmp_path / "d", Form(dtype="float16"))
    stored = np.load(folder / "logits.npy")
    assert stored.dtype == np.dtype("<f2")
    assert np.array_equal(stored, LOGITS.astype(np.float16))
    read = read_dump(folder).logits[4:9]
    assert read.dtype == np.float32
    assert np.array_equal(read, LOGITS[4:9].astype(np.float16).astype(np.float32))


def test_what_half_precision_cannot_hold(tmp_path: Path) -> None:
    logits = LOGITS.copy()
    logits[17, 3] = 65520.0  # the least that float16 rounds to infinity
    with pytest.raises(DumpError, match=r"position 17; found 65520.*--dtype float32"):
        write(tmp_path / "d", Form(dtype="float16"), logits)
    logits[17, 3] = -np.inf
    write(tmp_path / "d", Form(dtype="float16"), logits)
    assert np.isneginf(np.load(tmp_path / "d" / "logits.npy")[17, 3])


def test_positions(tmp_path: Path) -> None:
    kept = [*range(2, 9), 13, *range(20, 30)]
    folder = write(tmp_path / "d", Form(positions=parse_positions("2-8, 13, 20-29")))
    assert np.load(folder / "positions.npy").tolist() == kept
    assert np.array_equal(np.load(folder / "logits.npy"), LOGITS[kept])
    assert np.array_equal(np.load(folder / "tokens.npy"), TOKENS)
    dump = read_dump(folder)
    assert (dump.positions, dump.prefill) == (len(kept), COUNT - 2)
    assert dump.where().tolist() == kept


def test_comparing_some_positions_with_all(tmp_path: Path) -> None:
    changed = LOGITS + np.random.default_rng(3).normal(0, 1, LOGITS.shape).astype(np.float32)
    whole = read_dump(write(tmp_path / "all", Form()))
    some = read_dump(write(tmp_path / "some", Form(positions=((2, 9), (13, 14))), changed))
    every = read_dump(write(tmp_path / "every", Form(), changed))
    found = compare(whole, some)
    rows = [*range(2, 9), 13]
    p, q = (np.exp(a[rows].astype(np.float64)) for a in (LOGITS, changed))
    p, q = (a / a.sum(axis=1, keepdims=True) for a in (p, q))
    kl = (p * np.log(p / q)).sum(axis=1)
    assert found.overall.kl_mean == pytest.approx(kl.mean(), rel=1e-10)
    assert found.overall.kl_max_position == rows[int(kl.argmax())]
    assert (found.overall.count, found.overall.stop) == (8, 14)
    following = TOKENS[[row + 1 for row in rows]]
    nll = -np.log(q[np.arange(8), following])
    assert found.overall.ppl_run == pytest.approx(np.exp(nll.mean()), rel=1e-10)
    assert compare(every, some).overall.kl_max == 0.0
    other = read_dump(write(tmp_path / "other", Form(positions=((20, 22),))))
    with pytest.raises(DumpError, match="no position in common"):
        compare(some, other)


def test_top_k(tmp_path: Path) -> None:
    folder = write(tmp_path / "d", Form(top_k=4))
    logits, ids = np.load(folder / "logits.npy"), np.load(folder / "ids.npy")
    tail = np.load(folder / "tail.npy")
    assert (ids.dtype, tail.dtype) == (np.dtype("<i4"), np.dtype("<f8"))
    assert np.array_equal(ids, np.argsort(-LOGITS, axis=1, kind="stable")[:, :4])
    assert np.array_equal(logits, np.take_along_axis(LOGITS, ids.astype(int), 1))
    powers = np.exp(LOGITS.astype(np.longdouble))
    kept = np.exp(logits.astype(np.longdouble)).sum(axis=1)
    assert np.allclose(tail, np.log(powers.sum(axis=1) - kept).astype(np.float64), rtol=1e-12)
    dump = read_dump(folder)
    assert (dump.vocab, dump.positions) == (VOCAB, COUNT)
    assert compare(read_dump(write(tmp_path / "all", Form())), dump).overall.kl_max <= 1e-14


def test_top_k_and_positions_and_half(tmp_path: Path) -> None:
    form = Form(dtype="float16", positions=((3, 5), (20, 21)), top_k=2)
    folder = write(tmp_path / "d", form)
    assert np.load(folder / "logits.npy").shape == (3, 2)
    assert np.load(folder / "tail.npy").shape == (3,)
    assert read_dump(folder).where().tolist() == [3, 4, 20]


def test_nothing_left_out_has_no_tail(tmp_path: Path) -> None:
    logits = np.full((COUNT, VOCAB), -np.inf, np.float32)
    logits[:, 2] = 1.0
    folder = write(tmp_path / "d", Form(top_k=3), logits)
    assert np.isneginf(np.load(folder / "tail.npy")).all()
    dump = read_dump(folder)
    assert compare(dump, dump).overall.kl_max == 0.0


@pytest.mark.parametrize("k", [VOCAB, VOCAB + 1])
def test_top_k_of_all_is_refused(tmp_path: Path, k: int) -> None:
    with pytest.raises(DumpError, match=f"--top-k .*found {k}; allowed: 1 to {VOCAB - 1}"):
        write(tmp_path / "d", Form(top_k=k))


def test_positions_beyond_the_text_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DumpError, match=r"--positions .*found 30; allowed: 0 to 29"):
        write(tmp_path / "d", Form(positions=((0, 31),)))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("text", ["", "a", "3-1", "1,1", "5,2", "-3", "1-2-3", "0-4,4-6", "1.5"])
def test_other_ranges_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="ascending ranges"):
        parse_positions(text)


def test_ranges_that_touch() -> None:
    assert parse_positions("0-3,4-6,9") == ((0, 4), (4, 7), (9, 10))


@pytest.mark.parametrize("bad", ["twice", "beyond", "negative", "shape", "tail", "missing"])
def test_damage_to_a_top_k_dump_is_named(tmp_path: Path, bad: str) -> None:
    folder = write(tmp_path / "d", Form(top_k=3))
    ids = np.load(folder / "ids.npy")
    if bad == "twice":
        ids[5, 1] = ids[5, 0]
    elif bad in ("beyond", "negative"):
        ids[5, 1] = VOCAB if bad == "beyond" else -1
    elif bad == "shape":
        ids = ids[:-1]
    elif bad == "tail":
        np.save(folder / "tail.npy", np.full(COUNT, np.nan))
    np.save(folder / "ids.npy", ids)
    if bad == "missing":
        (folder / "ids.npy").unlink()
    with pytest.raises(DumpError, match=r"ids\.npy"):
        read_dump(folder)


def test_other_positions_than_those_stated_are_refused(tmp_path: Path) -> None:
    folder = write(tmp_path / "d", Form(positions=((3, 6),)))
    np.save(folder / "positions.npy", np.array([3, 4, 6]))
    with pytest.raises(DumpError, match=r"positions\.npy is not the file"):
        read_dump(folder)


def test_a_dump_says_its_edges(tmp_path: Path) -> None:
    folder = write(tmp_path / "d", Form())
    text = json.loads((folder / "dump.json").read_text(encoding="utf-8"))
    text["steps"]["edges"] = [16]
    (folder / "dump.json").write_text(json.dumps(text), encoding="utf-8")
    dump = read_dump(folder)
    assert dump.edges == (16,)
    found = compare(dump, dump, edges=(29,)).edges
    assert [(f.name, f.start, f.stop, f.count) for f in found] == [
        ("before 16", 0, 16, 16),
        ("from 16", 16, 32, 14),
        ("before 29", 13, 29, 16),
        ("from 29", 29, 45, 1),
    ]
