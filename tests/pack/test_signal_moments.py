"""Asked to end between any two bytecodes: nothing stays that nobody removes.

`--kills=all` takes every bytecode, not a sample.
"""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import signal
import sys
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from archives import archive_of
from little_packs import FILES, contents, edit_of, make_pack, manifest_of, names_in

import packimport.export
from forward import dump_writer, unfinished
from forward.steps import Block, Step
from packimport.pack import archive, in_place, progress, saving, signals, undo, workshop, writer
from packimport.pack.container import open_container
from packimport.pack.lock import locked
from packimport.pack.signals import interruptible

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork and signals"),
    pytest.mark.usefixtures("usual_signals"),
]
MODULES = (archive, contextlib, dump_writer, in_place, progress, saving, signals, undo, unfinished)
WATCHED = {module.__file__ for module in (*MODULES, packimport.export, workshop, writer)}
DATA = "model.onnx.data"
Case = tuple[Callable[[], object], Callable[[], bool]]


def traced(run: Callable[[], object], at: int = 0, number: int = 0) -> int:
    """Call `run`, and send the signal at so many bytecodes; how many there were.

    Counted are those of the watched modules while the signals are handled.
    """
    count = 0

    def trace(frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal count
        if frame.f_code.co_filename not in WATCHED:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            count += 1
            if count == at:
                os.kill(os.getpid(), number)
        return trace

    sys.settrace(trace)
    try:
        run()
    finally:
        sys.settrace(None)
    return count


def is_right(case: Case, at: int, number: int) -> bool:
    """Whether a process that gets the signal at that bytecode ends with nothing left."""
    with warnings.catch_warnings():
        # Python 3.12 warns of locks of other threads: nothing here takes those of other tests.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] == 0
    # What other tests left must not be destroyed here: its threads, which it waits for, are not.
    gc.disable()
    code = 1
    run, check = case
    try:
        # Checked while the exception holds the frames that it came through: none of
        # their generators is closed by being collected.
        try:
            # How often the caller of the threads looks at them is not the same each time.
            code = 0 if traced(run, at, number) < at else 3
        except (SystemExit, KeyboardInterrupt):
            code = 0 if check() else 2
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def writing(folder: Path) -> Case:
    root, out = make_pack(folder / "p"), folder / "out"

    def check() -> bool:
        is_whole = not out.exists() or len(contents(out)) == len(FILES) + 1
        return names_in(folder) in (["p"], ["out", "p"]) and is_whole

    return lambda: writer.write_container(open_container(root), out, [], {}, manifest_of), check


def patching_in_place(folder: Path) -> Case:
    root = make_pack(folder / "p")

    def run() -> None:
        with locked(root) as real:
            changes = [edit_of(FILES[DATA], DATA, 5, b"new bytes")]
            make_manifest = lambda files, _: manifest_of(files)  # noqa: E731
            in_place.write_in_place(
                open_container(real), changes, {}, make_manifest, inspect=lambda: None
            )

    def check() -> bool:
        found = contents(root)
        done = found[DATA][5:14] == b"new bytes"
        return ("packimport.json" in found) == done and (done or found == FILES)

    return run, check


def unpacking(folder: Path) -> Case:
    path = archive_of(FILES, folder / "p.zip")
    scratch = folder / "scratch"
    scratch.mkdir()

    def run() -> None:
        with archive.opened(path, scratch=scratch) as pack, interruptible():
            pack.read_bytes(DATA, 10**6)

    return run, lambda: not names_in(scratch)


def exporting(folder: Path) -> Case:
    made = packimport.export.Export(arrays={"cos": np.ones((4, 4))}, schedules=())
    return lambda: made.write(folder / "t.npz"), lambda: names_in(folder) in ([], ["t.npz"])


def dumping(folder: Path) -> Case:
    source = dump_writer.Provenance(engine={"name": "e"}, kind="file", path="p", files={})
    block = Block(Step(0, 4, False), np.ones((4, 5), np.float32))

    def run() -> None:
        dump_writer.write_dump(folder / "d", np.arange(4), [block], lambda: source)

    return run, lambda: names_in(folder) in ([], ["d"])


@pytest.mark.parametrize("make", [writing, patching_in_place, unpacking, exporting, dumping])
def test_nothing_stays(make: Callable[[Path], Case], tmp_path: Path, all_kills: bool) -> None:
    folder = tmp_path / "counted"
    folder.mkdir()
    bytecodes = traced(make(folder)[0])
    step = 1 if all_kills else max(1, bytecodes // 30)
    wrong = []
    for at in range(1, bytecodes + 1, step):
        for number in (signal.SIGTERM, signal.SIGINT):
            folder = tmp_path / f"{at}-{number}"
            folder.mkdir()
            if not is_right(make(folder), at, number):
                wrong.append((at, number, names_in(folder)))
            shutil.rmtree(folder)
    assert wrong == []
