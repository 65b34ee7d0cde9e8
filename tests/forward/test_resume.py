"""A dump that was killed goes on, and its bytes are those of one that was not."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from builders import tiny_pack

from forward.data_set import read_data_set
from forward.dump import read_dump
from forward.dump_pack import dump_pack, dump_prompts
from forward.form import ALL, Form
from forward.genai_config import read_decoder
from packimport.errors import DumpError
from packimport.pack.container import open_container

ROOT = Path(__file__).parent.parent.parent
COUNT, DECODE, CHUNK = 60, 10, 8
TOKENS = np.random.default_rng(4).integers(0, 64, COUNT)
STEPS = 7 + DECODE
unix = pytest.mark.skipif(os.name == "nt", reason="SIGKILL")

SCRIPT = """
import os, signal, sys
from pathlib import Path
import numpy as np
from forward.dump_pack import dump_pack
from forward.form import Form
from forward.genai_config import read_decoder
from packimport.pack.container import open_container

pack, out, tokens, at, form = sys.argv[1:]

def watch(steps, blocks):
    for index, block in enumerate(blocks):
        if index == int(at):
            os.kill(os.getpid(), signal.SIGKILL)
        yield block
        print(block.step.start, flush=True)

container = open_container(pack)
dump_pack(container, read_decoder(container), Path(out), np.load(tokens),
          decode=%d, chunk=%d, form=eval(form), watch=watch)
""" % (DECODE, CHUNK)  # noqa: UP031 - the script itself has braces


def dump(pack: Path, out: Path, decode: int = DECODE, form: Form = ALL) -> list[int]:
    """Dump here; the first positions of the steps whose logits were computed."""
    starts: list[int] = []

    def watch(_steps: object, blocks: object) -> object:
        for block in blocks:  # type: ignore[attr-defined]
            starts.append(block.step.start)
            yield block

    container = open_container(pack)
    decoder = read_decoder(container)
    options: dict[str, Any] = {"decode": decode, "chunk": CHUNK, "form": form, "watch": watch}
    dump_pack(container, decoder, out, TOKENS, **options)
    return starts


def killed(pack: Path, out: Path, at: int, form: Form = ALL) -> None:
    np.save(pack.parent / "tokens.npy", TOKENS)
    arguments = [str(pack), str(out), str(pack.parent / "tokens.npy"), str(at), repr(form)]
    done = subprocess.run([sys.executable, "-c", SCRIPT, *arguments], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL


def contents(folder: Path) -> dict[str, bytes]:
    """Every file in and below the folder, hidden ones too, by its path."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


@unix
@pytest.mark.parametrize("kills", [(1,), (5,), (STEPS - 1,), (3, 2, 4)])
@pytest.mark.parametrize("form", ["gqa", "rotary_embedding"])
def test_a_kill_changes_no_byte(tmp_path: Path, kills: tuple[int, ...], form: str) -> None:
    pack = tiny_pack(tmp_path / "pack", form=form, vocab=5000)  # each step is more than a buffer
    dump(pack, tmp_path / "whole")
    out = tmp_path / "killed"
    for at in kills:
        killed(pack, out, at)
        assert not out.exists()
    starts = dump(pack, out)
    assert len(starts) == STEPS - sum(kills)
    assert contents(out) == contents(tmp_path / "whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "killed",
        "pack",
        "tokens.npy",
        "whole",
    ]
    assert read_dump(out).prefill == COUNT - DECODE


FORMS = {
    "top-k": Form(top_k=300),
    "short rows": Form(top_k=3, dtype="float16"),
    "positions": Form(positions=((3, 20), (30, 55))),
    "both": Form(positions=((3, 4), (30, 60)), top_k=40),
}


@unix
@pytest.mark.parametrize("kills", [(1,), (5,), (STEPS - 1,), (3, 2, 4)])
@pytest.mark.parametrize("form", FORMS)
def test_a_kill_changes_no_byte_of_a_small_dump(
    tmp_path: Path, kills: tuple[int, ...], form: str
) -> None:
    """Steps of which no row was kept are run again where no kept one follows them."""
    pack = tiny_pack(tmp_path / "pack", vocab=5000)
    dump(pack, tmp_path / "whole", form=FORMS[form])
    out = tmp_path / "killed"
    for at in kills:
        killed(pack, out, at, FORMS[form])
    starts = dump(pack, out, form=FORMS[form])
    assert contents(out) == contents(tmp_path / "whole")
    assert not (tmp_path / ".killed.partial").exists()
    if FORMS[form].positions is None:
        assert len(starts) == STEPS - sum(kills)
    else:
        assert len(starts) < STEPS or sum(kills) == 1


@unix
@pytest.mark.parametrize("name", ["logits.npy", "ids.npy", "tail.npy"])
def test_a_torn_row_of_any_file_is_made_again(tmp_path: Path, name: str) -> None:
    pack = tiny_pack(tmp_path / "pack", vocab=5000)
    form = FORMS["top-k"]
    dump(pack, tmp_path / "whole", form=form)
    killed(pack, tmp_path / "out", 3, form)
    torn = tmp_path / ".out.partial" / name
    os.truncate(torn, torn.stat().st_size - 5)
    assert dump(pack, tmp_path / "out", form=form)[0] == 2 * CHUNK
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@unix
def test_a_top_k_dump_that_lacks_the_rename_alone(tmp_path: Path) -> None:
    """The size of the vocabulary is known from a row: the last step is run again."""
    pack = tiny_pack(tmp_path / "pack", vocab=5000)
    form = FORMS["top-k"]
    dump(pack, tmp_path / "whole", form=form)
    killed(pack, tmp_path / "out", STEPS - 1, form)
    for name in ("logits.npy", "ids.npy", "tail.npy"):
        shutil.copy(tmp_path / "whole" / name, tmp_path / ".out.partial" / name)
    assert dump(pack, tmp_path / "out", form=form) == [COUNT - 1]
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@unix
def test_a_torn_row_is_made_again(tmp_path: Path) -> None:
    pack = tiny_pack(tmp_path / "pack", vocab=5000)
    dump(pack, tmp_path / "whole")
    killed(pack, tmp_path / "out", 3)
    logits = tmp_path / ".out.partial" / "logits.npy"
    os.truncate(logits, logits.stat().st_size - 5)
    assert dump(pack, tmp_path / "out")[0] == 2 * CHUNK
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@unix
def test_another_run_does_not_go_on_in_it(tmp_path: Path) -> None:
    pack = tiny_pack(tmp_path / "pack", vocab=5000)
    killed(pack, tmp_path / "out", 3)
    with pytest.raises(DumpError, match=r"unfinished dump of another run.*decode"):
        dump(pack, tmp_path / "out", decode=5)
    os.utime(pack / "model.onnx", (1, 1))
    with pytest.raises(DumpError, match=r"unfinished dump of another run.*files"):
        dump(pack, tmp_path / "out")
    assert (tmp_path / ".out.partial" / "logits.npy").is_file()


@unix
def test_what_a_power_cut_left_is_named_with_its_cure(tmp_path: Path) -> None:
    pack = tiny_pack(tmp_path / "p")
    (tmp_path / ".out.partial").mkdir()
    (tmp_path / ".out.partial/run.json").write_bytes(b'{"tool": \0\0\0\0')
    with pytest.raises(DumpError, match=r"\.out\.partial: .*found run\.json: .*Remove that folder"):
        dump(pack, tmp_path / "out")
    assert (tmp_path / ".out.partial/run.json").is_file()


def test_two_at_once_do_not_write_one_dump(tmp_path: Path) -> None:
    pack = tiny_pack(tmp_path / "pack")
    np.save(tmp_path / "tokens.npy", TOKENS)
    script = SCRIPT.replace("yield block", "yield block; import time; time.sleep(60)")
    arguments = [str(pack), str(tmp_path / "out"), str(tmp_path / "tokens.npy"), "99", repr(ALL)]
    with subprocess.Popen([sys.executable, "-c", script, *arguments], cwd=ROOT) as process:
        until = time.monotonic() + 60
        while not (tmp_path / ".out.partial" / "logits.npy").exists():
            assert time.monotonic() < until
            time.sleep(0.05)
        with pytest.raises(DumpError, match="another run is writing this dump"):
            dump(pack, tmp_path / "out")
        process.kill()
    dump(pack, tmp_path / "out")


SET_SCRIPT = """
import os, signal, sys
from pathlib import Path
import numpy as np
from forward import dump_pack
from forward.genai_config import read_decoder
from forward.runner import Runner
from packimport.pack.container import open_container

pack, out, tokens, at = sys.argv[1:]
blocks = Runner.blocks
seen = 0

def watched(self, tokens, steps, done=0, share=None):
    global seen
    for block in blocks(self, tokens, steps, done, share):
        if seen == int(at):
            os.kill(os.getpid(), signal.SIGKILL)
        seen += 1
        yield block

Runner.blocks = watched
container = open_container(pack)
prompts = np.split(np.load(tokens), %s)
dump_pack.dump_prompts(container, read_decoder(container), Path(out), prompts, decode=2, chunk=8)
""" % [20, 25, 50]


@unix
@pytest.mark.parametrize("kills", [(2,), (7, 3), (0, 12)])
def test_a_kill_leaves_nothing_in_a_data_set(tmp_path: Path, kills: tuple[int, ...]) -> None:
    """Killed inside of a dump of the set, by SIGKILL: what that dump had written vanishes."""
    pack = tiny_pack(tmp_path / "pack", vocab=5000)
    np.save(tmp_path / "tokens.npy", TOKENS)
    prompts = np.split(TOKENS, [20, 25, 50])

    def dump_set(out: Path) -> None:
        container = open_container(pack)
        dump_prompts(container, read_decoder(container), out, prompts, decode=2, chunk=8)

    dump_set(tmp_path / "whole")
    out = tmp_path / "killed"
    for at in kills:
        arguments = [str(pack), str(out), str(tmp_path / "tokens.npy"), str(at)]
        done = subprocess.run([sys.executable, "-c", SET_SCRIPT, *arguments], cwd=ROOT, check=False)
        assert done.returncode == -signal.SIGKILL
        assert list((tmp_path / ".killed.partial").glob(".*.partial"))
        assert not out.exists()
    dump_set(out)
    folders = [sorted(path.name for path in side.iterdir()) for side in (out, tmp_path / "whole")]
    assert folders == [["00000", "00001", "00002", "00003"]] * 2
    assert contents(out) == contents(tmp_path / "whole")


def test_hidden_folders_are_no_dumps_of_a_set(tmp_path: Path) -> None:
    """An older release left them there after a kill."""
    container = open_container(tiny_pack(tmp_path / "pack"))
    prompts = np.split(TOKENS, [20])
    dump_prompts(container, read_decoder(container), tmp_path / "set", prompts)
    shutil.copytree(tmp_path / "set" / "00000", tmp_path / "set" / ".00001.1234abcd.partial")
    assert [len(dump.tokens) for dump in read_data_set(tmp_path / "set").dumps] == [20, 40]


@unix
@pytest.mark.parametrize("most", [0, 400_000])
def test_a_file_that_grows_too_large_is_named(tmp_path: Path, most: int) -> None:
    """The limit of `ulimit -f`, in the first write of a file and in a later one."""
    pack = tiny_pack(tmp_path / "pack", vocab=5000)
    np.save(tmp_path / "tokens.npy", TOKENS)
    script = (
        "import resource, sys; from forward.cli import main;"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({most + 2000},) * 2); main(sys.argv[1:])"
    )
    arguments = [str(pack), "--tokens", str(tmp_path / "tokens.npy"), "--dump-logits"]
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments, str(tmp_path / "out")],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 3
    name = tmp_path / ".out.partial" / "logits.npy"
    assert done.stderr == f"forward-serve: error: {name}: File too large\n"
    assert not (tmp_path / "out").exists()
