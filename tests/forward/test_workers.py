"""Workers: the figures of several processes are those of one, whatever becomes of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import lives

from forward import stretch as stretch_module
from forward import workers
from forward.compare import compare
from forward.dump import Dump
from forward.npy import open_rows
from forward.statistics import ARRAYS
from forward.stretch import from_bytes, requested, stretches, to_bytes
from packimport.errors import DumpError

ROOT = Path(__file__).parents[2]
COUNT, VOCAB = 120, 500


def dumps(folder: Path, dtype: str = "<f4", holes: bool = False) -> tuple[Dump, Dump]:
    """Two dumps whose logits lie in files."""
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(11)
    x = rng.normal(0, 3, (COUNT, VOCAB))
    y = x + rng.normal(0, 0.3, x.shape)
    if holes:
        x[5, 7] = y[5, 7] = y[50, 9] = -np.inf
    tokens = np.arange(COUNT) * 7 % VOCAB
    for name, logits in (("x.npy", x), ("y.npy", y)):
        np.save(folder / name, logits.astype(dtype))
    one, other = (open_rows(folder / name) for name in ("x.npy", "y.npy"))
    return (
        Dump(name="reference", tokens=tokens, logits=one, prefill=COUNT),
        Dump(name="run", tokens=tokens, logits=other, prefill=COUNT - 20),
    )


@pytest.fixture
def answered(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Three processes are used for dumps however small; the sizes of the others' answers."""
    sizes: list[int] = []

    def counted(data: bytes) -> Any:
        found = from_bytes(data)
        sizes.append(len(data))
        return found

    def slowly(self: Any, part: workers.Part) -> Any:
        time.sleep(0.02)
        return part.figures()

    monkeypatch.setattr(workers, "SHARE", 1)
    monkeypatch.setattr(workers, "cores", lambda: 3)
    monkeypatch.setattr(workers, "from_bytes", counted)
    monkeypatch.setattr(workers._Here, "figures", slowly)
    monkeypatch.setattr(stretch_module, "_ENTRIES", 5 * VOCAB)
    return sizes


@pytest.mark.parametrize("dtype", ["<f4", "<f2"])
@pytest.mark.parametrize("holes", [False, True])
def test_figures_are_those_of_one_process(
    dtype: str, holes: bool, tmp_path: Path, answered: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    both = dumps(tmp_path, dtype, holes)
    several = compare(*both, edges=(60,), worst_count=5)
    assert answered
    monkeypatch.setattr(workers, "cores", lambda: 1)
    answered.clear()
    alone = compare(*both, edges=(60,), worst_count=5)
    assert not answered
    assert several == alone


def test_logits_in_memory_are_compared_here(tmp_path: Path, answered: list[int]) -> None:
    one, other = dumps(tmp_path)
    expected = compare(one, other)
    answered.clear()
    loaded = replace(one, logits=one.logits[:])
    assert compare(loaded, other).overall == expected.overall
    assert not answered


def test_dumps_that_keep_other_positions(tmp_path: Path, answered: list[int]) -> None:
    one, other = dumps(tmp_path)
    at = np.concatenate([np.arange(3, 40), np.arange(50, 90)])
    np.save(tmp_path / "some.npy", other.logits[:][at])
    some = replace(other, logits=open_rows(tmp_path / "some.npy"), at=at)
    found = compare(one, some)
    assert answered
    memory = [
        replace(one, logits=one.logits[:]),
        replace(some, logits=some.logits[:]),
    ]
    assert found.overall == compare(*memory).overall


@pytest.mark.parametrize("text", ["raise SystemExit(3)", "print('a stray line, and no more')"])
def test_a_process_that_fails_costs_nothing_but_time(
    text: str, tmp_path: Path, answered: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    both = dumps(tmp_path)
    expected = compare(*both).overall
    answered.clear()
    script = tmp_path / "failing.py"
    script.write_text(text)
    monkeypatch.setattr(workers, "_SCRIPT", script)
    assert compare(*both).overall == expected
    assert not answered


@pytest.mark.parametrize("executable", ["/no/python", "", None])
def test_no_process_can_be_started(
    executable: str | None,
    tmp_path: Path,
    answered: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An interpreter within another program may not know its own place."""
    both = dumps(tmp_path)
    expected = compare(*both).overall
    monkeypatch.setattr(sys, "executable", executable)
    answered.clear()
    assert compare(*both).overall == expected
    assert not answered


@pytest.mark.usefixtures("answered")
def test_an_error_names_the_first_position(tmp_path: Path) -> None:
    one, other = dumps(tmp_path)
    logits = other.logits[:].copy()
    logits[[37, 90, 91], 3] = np.nan
    np.save(tmp_path / "y.npy", logits)
    with pytest.raises(DumpError, match="run's logits have no softmax at position 37"):
        compare(one, other)


@pytest.mark.usefixtures("answered")
@pytest.mark.parametrize("gone", [False, True])
def test_a_file_that_is_cut_or_gone_meanwhile(gone: bool, tmp_path: Path) -> None:
    both = dumps(tmp_path)
    file = tmp_path / "y.npy"
    if gone:
        file.unlink()
    else:
        os.truncate(file, file.stat().st_size // 2)
    with pytest.raises(DumpError, match="any more" if gone else "cut while it was read") as caught:
        compare(*both)
    assert caught.value.place == str(file)


def test_a_request_and_its_answer_keep_every_bit(tmp_path: Path) -> None:
    both = dumps(tmp_path, "<f2", holes=True)
    for stretch in stretches(*both, np.arange(10, COUNT)):
        asked = json.loads(json.dumps(stretch.request()))
        expected, found = stretch.figures(), from_bytes(to_bytes(requested(asked).figures()))
        for name in ARRAYS:
            one, other = getattr(found, name), getattr(expected, name)
            assert one.dtype == other.dtype
            assert np.array_equal(one, other, equal_nan=True)
        assert found.moments == expected.moments


def test_an_answer_that_is_cut_is_none(tmp_path: Path) -> None:
    (stretch,) = stretches(*dumps(tmp_path), np.arange(COUNT))
    data = to_bytes(stretch.figures())
    for size in (0, 1, 100, len(data) // 2, len(data) - 1):
        with pytest.raises((ValueError, EOFError)):
            from_bytes(data[:size])


def test_names_that_are_no_text(tmp_path: Path, answered: list[int]) -> None:
    folder = tmp_path / "ü ' \" 日本"
    if sys.platform == "linux":
        folder = Path(os.fsdecode(os.fsencode(folder) + b"\xff"))
    both = dumps(folder)
    compare(*both)
    assert answered


def test_names_from_here(
    tmp_path: Path, answered: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    dumps(tmp_path / "here")
    monkeypatch.chdir(tmp_path)
    compare(*dumps(Path("here")))
    assert answered


def test_nothing_is_imported_from_where_the_user_stands(
    tmp_path: Path, answered: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    both = dumps(tmp_path)
    (tmp_path / "numpy.py").write_text("raise SystemExit(9)")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    compare(*both)
    assert answered


LONG = """
import sys
from pathlib import Path
from forward import workers
from forward.stretch import stretches
from forward.dump import Dump
from forward.npy import NpyRows
import numpy as np
workers.SHARE, workers.cores = 1, lambda: 3
workers._Here.figures = lambda self, part: print("at work", flush=True) or part.figures()
rows = NpyRows(Path(sys.argv[1]), (200_000, 4096), 0)
dump = Dump(name="x", tokens=np.zeros(200_000, np.int64), logits=rows, prefill=1)
parts = list(stretches(dump, dump, np.arange(200_000)))
for _ in workers.shared_out(parts, 1 << 40):
    pass
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("way", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_process_is_left(way: signal.Signals, tmp_path: Path) -> None:
    with (tmp_path / "zeros").open("wb") as file:
        file.truncate(4 * 200_000 * 4096)
    command = [sys.executable, "-c", LONG, str(tmp_path / "zeros")]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "at work\n"
        children = _until(lambda: _children(parent.pid), wanted=2)
        parent.send_signal(way)
        parent.communicate(timeout=60)
    assert parent.returncode == -way
    _until(lambda: [pid for pid in children if lives(pid)], wanted=0)


def _children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # a thread that ended meanwhile
            found += (task / "children").read_text().split()
    return sorted({int(child) for child in found})


def _until(look: Any, wanted: int) -> list[int]:
    for _ in range(600):
        found: list[int] = look()
        if len(found) == wanted:
            return found
        time.sleep(0.1)
    raise AssertionError(f"{found} after a minute, {wanted} wanted")
