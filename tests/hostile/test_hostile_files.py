"""What stands on the disk in place of a file, and files that change while they are read."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from attempts import command, refused, sound_pack, watched
from builders import plain, tiny_pack

from packimport.errors import ContainerError
from packimport.graph.onnx_file import OnnxFile
from packimport.pack import container as container_module
from packimport.pack.container import open_container

posix = pytest.mark.skipif(os.name != "posix", reason="POSIX only")
FILES = ("model.onnx", "model.onnx.data", "genai_config.json", "config.json", "notes.txt")


@posix
@pytest.mark.parametrize("name", FILES)
def test_a_fifo_in_place_of_a_file(name: str, tmp_path: Path) -> None:
    pack = sound_pack(tmp_path / "in" / "p")
    (pack / name).unlink(missing_ok=True)
    os.mkfifo(pack / name)
    assert refused(pack)["place"] == name


@pytest.mark.parametrize("name", FILES[:3])
def test_a_folder_in_place_of_a_file(name: str, tmp_path: Path) -> None:
    pack = sound_pack(tmp_path / "in" / "p")
    (pack / name).unlink()
    (pack / name).mkdir()
    refused(pack)


@posix
@pytest.mark.parametrize("path", ["fifo", "/dev/null", "/dev/zero", "file", "missing", "loop"])
def test_no_folder_in_place_of_a_pack(path: str, tmp_path: Path) -> None:
    place = tmp_path / "in"
    place.mkdir()
    os.mkfifo(place / "fifo")
    (place / "file").write_bytes(b"x")
    (place / "loop").symlink_to("loop")
    done = command(place / path)
    assert done.code == 3
    assert command("patch", place / path, "-o", tmp_path / "out").code == 3
    assert not (tmp_path / "out").exists()


@posix
@pytest.mark.parametrize("path", ["fifo", "/dev/null", "folder without one"])
def test_no_file_in_place_of_a_config(path: str, tmp_path: Path) -> None:
    pack = sound_pack(tmp_path / "in" / "p")
    place = tmp_path / "in"
    os.mkfifo(place / "fifo")
    (place / "folder without one").mkdir()
    refused(pack, "--config", place / path, reads=(place, Path("/dev/null")))


@pytest.mark.parametrize("name", ["a\nb", "\x1b[2J", "\x7f", "\u2028", "a\\b"])
@posix
def test_names_with_control_characters(name: str, tmp_path: Path) -> None:
    pack = sound_pack(tmp_path / "in" / "p")
    (pack / name).write_bytes(b"")
    refused(pack)


@posix
def test_folders_nested_too_deep(tmp_path: Path) -> None:
    pack = sound_pack(tmp_path / "in" / "p")
    (pack / Path(*["d"] * 200)).mkdir(parents=True)
    refused(pack)


OPTIONS = {
    "custom_ops_library": "evil.so",
    "external_data_file": "/etc/passwd",
    "session.model_external_initializers_file_folder_path": "/etc",
    "ep.context_file_path": "../../etc/passwd",
    "dd_cache": "/root",
}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("stage", [False, True])
def test_options_that_name_code_or_files_are_not_followed(
    option: str, stage: bool, tmp_path: Path
) -> None:
    pack = sound_pack(tmp_path / "p")
    path = pack / "genai_config.json"
    genai = json.loads(path.read_text(encoding="utf-8"))
    holder = genai["model"]["decoder"]
    if stage:
        holder["pipeline"] = [{"prefill": {"filename": "model.onnx"}}]
        holder = holder["pipeline"][0]["prefill"]
    options = holder.setdefault("session_options", {})
    options["provider_options"] = [{"RyzenAI": {option: OPTIONS[option]}}]
    options[option] = OPTIONS[option]
    path.write_text(json.dumps(genai), encoding="utf-8")
    (pack / "evil.so").write_bytes(b"\x7fELF")
    with watched([pack], [tmp_path / "out"]):
        done = command(pack, "--format", "json")
    report = json.loads(done.out)
    assert (done.code, report["verdict"]) == (0, "ok")
    codes = [finding["code"] for finding in report["findings"]]
    assert codes.count("RPE017") == (2 if option == "custom_ops_library" else 0)
    assert command("patch", pack, "-o", tmp_path / "out").code == 0


def cut(path: Path) -> None:
    os.truncate(path, 10)


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x")


def rewrite(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))
    os.utime(path, ns=(0, time.time_ns() + 10**9))


def replace(path: Path) -> None:
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    other.replace(path)


def remove(path: Path) -> None:
    path.unlink()


@posix
@pytest.mark.parametrize("change", [cut, grow, rewrite, replace, remove])
@pytest.mark.parametrize("name", FILES[:4])
@pytest.mark.parametrize("moment", ["listed", "opened"])
def test_a_file_that_changes_while_it_is_read(
    moment: str,
    name: str,
    change: Callable[[Path], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Once after the listing, once in the middle of the first read."""
    pack = tiny_pack(tmp_path / "p", config={}, tables=plain(64, 8, 500.0))
    path = pack / name
    real = os.open
    done: list[int] = []

    def meddle(target: str | Path, flags: int, *args: int, **more: int) -> int:
        ours = Path(target) == path and not done
        if ours and moment == "listed":
            done.append(1)
            change(path)
        descriptor = real(target, flags, *args, **more)
        if ours and moment == "opened":
            done.append(1)
            # Past the first look at the file, which would see it.
            monkeypatch.setattr(container_module, "stamp_of", changing(change, path))
        return descriptor

    monkeypatch.setattr(os, "open", meddle)
    outcome = command("patch", pack, "-o", tmp_path / "out")
    assert outcome.code == 3, outcome
    assert not (tmp_path / "out").exists()
    assert done or name == "model.onnx.data"


def changing(change: Callable[[Path], None], path: Path) -> Callable[[os.stat_result], object]:
    """`stamp_of`, after whose first call the file changes."""
    real, calls = container_module.stamp_of, []

    def stamp_of(info: os.stat_result) -> object:
        stamp = real(info)
        calls.append(1)
        if len(calls) == 1 and path.exists():
            change(path)
        return stamp

    return stamp_of


@posix
def test_a_graph_that_is_cut_after_it_was_parsed(tmp_path: Path) -> None:
    """Were it mapped, the next look at it would end the process by SIGBUS."""
    pack = sound_pack(tmp_path / "p", inline=True)
    file = OnnxFile(open_container(pack), "model.onnx")
    (cos,) = [tensor for tensor in file.main.tensors() if tensor.name == "cos"]
    os.truncate(pack / "model.onnx", 0)
    with pytest.raises(ContainerError, match="changed since"):
        file.payload(cos)


CHECKER = """
import sys
from packimport.cli import main
main(["check", sys.argv[1], "--quiet"])
"""


@posix
def test_a_check_races_against_a_writer(tmp_path: Path) -> None:
    """A large table is cut and restored over and over while it is checked."""
    pack = sound_pack(tmp_path / "p", rows=200_000)
    data = pack / "model.onnx.data"
    size = data.stat().st_size
    codes = []
    for _ in range(4):
        command_line = [sys.executable, "-c", CHECKER, str(pack)]
        with subprocess.Popen(command_line, stderr=subprocess.PIPE) as run:
            while run.poll() is None:
                os.truncate(data, 4096)
                os.truncate(data, size)
                time.sleep(0.001)
            codes.append(run.returncode)
    assert -signal.SIGBUS not in codes
    assert set(codes) <= {0, 1, 3}
