"""The side files of Ryzen AI packs: carried over, named where they are missing, hashed once."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from ryzen_bytes import files
from ryzen_packs import FAMILIES, Pack, build
from ryzen_tables import LLAMA3, plain_instead

import packimport.pack.container as container_module
from packimport import check, patch
from packimport.errors import PackimportError

ROWS = 256
POINTER = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
    b"size 1258291200\n"
)
NAMES = {
    "hybrid 1.4": "Ryzen AI 1.3/1.4 hybrid",
    "npu 1.6": "Ryzen AI 1.6 NPU token fusion",
    "hybrid 1.7": "Ryzen AI 1.7 hybrid",
    "eager 1.8": "Ryzen AI 1.8 eager",
    "token fusion 1.8": "Ryzen AI 1.8 token fusion",
    "full fusion 1.8": "Ryzen AI 1.8 full fusion",
}


def made(family: str, folder: Path, **options: Any) -> Pack:
    return build(family, folder / "pack", LLAMA3, tables=plain_instead(LLAMA3, ROWS), **options)


def outcome(pack: Pack) -> tuple[int, str]:
    """The exit code of a check, and all that it says."""
    try:
        report = check(pack.path, config=pack.config)
    except PackimportError as error:
        return error.exit_code, str(error)
    return report.exit_code, json.dumps(report.to_dict(), ensure_ascii=False)


@pytest.mark.parametrize("family", sorted(NAMES))
def test_formats_are_named(family: str, tmp_path: Path) -> None:
    pack = made(family, tmp_path)
    report = check(pack.path, config=pack.config)
    assert NAMES[family] in report.text()
    shown = report.to_dict()["container"]
    assert NAMES[family] in json.dumps(shown)


def header(pack: Pack) -> str:
    (found,) = pack.path.glob("*.pb.bin")
    return found.name


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_missing_data_file(family: str, tmp_path: Path) -> None:
    pack = made(family, tmp_path)
    name = f"{pack.graph}.data"
    (pack.path / name).unlink()
    code, text = outcome(pack)
    assert (code, name in text) == (3, True), text


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("what", ["header", "weights"])
def test_a_missing_side_file(family: str, what: str, tmp_path: Path) -> None:
    pack = made(family, tmp_path)
    name = header(pack) if what == "header" else FAMILIES[family].weights
    assert f'"{name}"' not in json.dumps(outcome(pack)[1])
    (pack.path / name).unlink()
    code, text = outcome(pack)
    assert code in (1, 3)
    assert name in text
    assert "missing" in text


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("what", ["graph", "data", "header", "weights", "genai_config.json"])
def test_a_pointer_of_git_lfs(family: str, what: str, tmp_path: Path) -> None:
    pack = made(family, tmp_path)
    names = {
        "graph": pack.graph,
        "data": f"{pack.graph}.data",
        "header": header(pack),
        "weights": FAMILIES[family].weights,
    }
    name = names.get(what, what)
    (pack.path / name).write_bytes(POINTER)
    code, text = outcome(pack)
    assert name in text
    assert "git lfs pull" in text
    assert code in ((1, 3) if what in ("header", "weights") else (3,))


def test_exit_code_3_of_the_command(tmp_path: Path) -> None:
    pack = made("npu 1.6", tmp_path)
    (pack.path / "fusion.onnx.data").write_bytes(POINTER)
    assert pack.config is not None
    done = subprocess.run(
        [sys.executable, "-m", "packimport", str(pack.path), "--config", str(pack.config)],
        check=False,
        capture_output=True,
        encoding="utf-8",
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONUTF8": "1"},
    )
    assert done.returncode == 3
    assert "git lfs pull" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_side_files_are_carried_over(family: str, tmp_path: Path) -> None:
    pack = made(family, tmp_path)
    # Nothing but the graph is read as one.
    (pack.path / FAMILIES[family].weights).write_bytes(b"\x08\x0a\xff not a graph")
    patch(pack.path, tmp_path / "out", config=pack.config)
    old, new = files(pack.path), files(tmp_path / "out")
    for name, data in old.items():
        if name not in (pack.graph, f"{pack.graph}.data"):
            assert new[name] == data, name
    manifest = json.loads(new["packimport.json"])
    listed = {entry["name"]: entry["sha256"] for entry in manifest["files"]}
    for name, digest in listed.items():
        assert digest == hashlib.sha256(new[name]).hexdigest(), name
    assert listed.keys() == new.keys() - {"packimport.json"}


def test_2000_side_files_are_hashed_once_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = made("full fusion 1.8", tmp_path, side_files=2000)
    opened: Counter[str] = Counter()
    hashed: Counter[bytes] = Counter()
    real_open, real_hash = os.open, hashlib.sha256

    def counting_open(path: Any, *rest: Any, **more: Any) -> int:
        if isinstance(path, (str, Path)):
            opened[os.fspath(path)] += 1
        return real_open(path, *rest, **more)

    class Counting:
        def __init__(self, data: bytes = b"") -> None:
            self.digests, self.seen = real_hash(data), bytes(data)

        def update(self, data: Any) -> None:
            self.digests.update(data)
            if len(self.seen) < 256:
                self.seen += bytes(data[:256])

        def hexdigest(self) -> str:
            hashed[self.seen[:256]] += 1
            return self.digests.hexdigest()

    monkeypatch.setattr(container_module.os, "open", counting_open)
    monkeypatch.setattr(hashlib, "sha256", Counting)
    patch(pack.path, tmp_path / "out", config=pack.config)
    monkeypatch.undo()
    side = [path for path in (pack.path / "cache").iterdir() if path.name.startswith("part_")]
    assert len(side) == 2000
    real = {path: path.read_bytes() for path in side}
    assert len(set(real.values())) == 2000
    assert {hashed[data] for data in real.values()} == {1}
    assert {opened[os.path.realpath(path)] for path in side} == {1}
    copied = files(tmp_path / "out")
    assert all(copied[f"cache/{path.name}"] == data for path, data in real.items())
