"""A dump that was killed goes on, and its bytes are those of one that was not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from builders import tiny_pack

from forward.dump import read_dump
from forward.dump_pack import dump_pack
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
from forward.genai_config import read_decoder
from packimport.pack.container import open_container

pack, out, tokens, at = sys.argv[1:]

def watch(steps, blocks):
    for index, block in enumerate(blocks):
        if index == int(at):
            os.kill(os.getpid(), signal.SIGKILL)
        yield block
        print(block.step.start, flush=True)

container = open_container(pack)
dump_pack(container, read_decoder(container), Path(out), np.load(tokens),
          decode=%d, chunk=%d, watch=watch)
""" % (DECODE, CHUNK)  # noqa: UP031 - the script itself has braces


def dump(pack: Path, out: Path, decode: int = DECODE) -> list[int]:
    """Dump here; the first positions of the steps whose logits were computed."""
    starts: list[int] = []

    def watch(_steps: object, blocks: object) -> object:
        for block in blocks:  # type: ignore[attr-defined]
            starts.append(block.step.start)
            yield block

    container = open_container(pack)
    decoder = read_decoder(container)
    dump_pack(container, decoder, out, TOKENS, decode=decode, chunk=CHUNK, watch=watch)  # type: ignore[arg-type]
    return starts


def killed(pack: Path, out: Path, at: int) -> None:
    np.save(pack.parent / "tokens.npy", TOKENS)
    arguments = [str(pack), str(out), str(pack.parent / "tokens.npy"), str(at)]
    done = subprocess.run([sys.executable, "-c", SCRIPT, *arguments], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


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
def test_two_at_once_do_not_write_one_dump(tmp_path: Path) -> None:
    pack = tiny_pack(tmp_path / "pack")
    np.save(tmp_path / "tokens.npy", TOKENS)
    script = SCRIPT.replace("yield block", "yield block; import time; time.sleep(60)")
    arguments = [str(pack), str(tmp_path / "out"), str(tmp_path / "tokens.npy"), "99"]
    with subprocess.Popen([sys.executable, "-c", script, *arguments], cwd=ROOT) as process:
        until = time.monotonic() + 60
        while not (tmp_path / ".out.partial" / "logits.npy").exists():
            assert time.monotonic() < until
            time.sleep(0.05)
        with pytest.raises(DumpError, match="another run is writing this dump"):
            dump(pack, tmp_path / "out")
        process.kill()
    dump(pack, tmp_path / "out")
