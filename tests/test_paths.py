"""Every command on packs in places with spaces, other scripts and long names, and in a hub cache.

The pack is a real one, of onnxruntime-genai's builder, and runs in onnxruntime.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from archives import FORMATS, archive_of, files_of

from packimport.pack.journal import FOLDER

PACK = Path(__file__).parent / "packs" / "oga-0.11.2-llama3"
# A part of a name has at most 255 bytes on most disks; on Windows, a path 260 characters,
# where longer ones are not enabled.
PLACES = {
    "spaces": Path(" two  words ") / "a pack",
    "quotes": Path("it's") / 'pack "one" $HOME %PATH% & co; #1 *',
    "other scripts": Path("pâck 模型") / "упаковка 🦙 é e\u0301",
    "dashes": Path("-o") / "--in-place",
    "commands": Path("check") / "patch",
    "dots": Path("...a.b") / ".hidden.onnx.d",
    "a long part": Path("x" * 250) / "p",
    "300 characters": Path(*["ordner mit namen " + "n" * 60] * 4) / ("p" * 60),
    "a long part of other scripts": Path("模" * 80) / ("é" * 120),
}
if sys.platform == "win32":
    for case in ("spaces", "quotes", "a long part", "300 characters"):
        del PLACES[case]


def run(*args: str | Path, module: str = "packimport", code: int = 0) -> str:
    """What a command prints; it must end with `code` and without a word on standard error."""
    done = subprocess.run(
        [sys.executable, "-m", module, *map(str, args)],
        capture_output=True,
        text=True,
        check=False,
        encoding="utf-8",
        cwd=Path(__file__).parents[1],
    )
    assert (done.returncode, done.stderr) == (code, ""), args
    return done.stdout


def logits(pack: Path, out: Path) -> np.ndarray:
    """The logits of three tokens by forward-serve."""
    tokens = out.with_name("tokens.json")
    tokens.write_text("[3, 1, 4]", encoding="utf-8")
    args = ("--tokens", tokens, "--threads", "1")
    run(pack, "--dump-logits", out, *args, module="forward")
    return np.load(out / "logits.npy")


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, bytes], np.ndarray]:
    """The patched pack and its logits, in a place with a plain name."""
    place = tmp_path_factory.mktemp("plain")
    run("patch", PACK, "-o", place / "out")
    return files_of(place / "out"), logits(place / "out", place / "logits")


def without_manifest(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name: data for name, data in files.items() if name != "packimport.json"}


@pytest.mark.parametrize("case", PLACES)
def test_every_command_in_such_a_place(
    case: str, tmp_path: Path, expected: tuple[dict[str, bytes], np.ndarray]
) -> None:
    place = tmp_path / PLACES[case]
    if case == "300 characters":
        assert len(str(place)) > 300
    place.parent.mkdir(parents=True)
    shutil.copytree(PACK, place)
    before = files_of(place)
    out = place.with_name("out " + place.name[:100])
    files, right = expected

    report = json.loads(run("check", place, "--format", "json", code=1))
    assert report["container"]["path"] == str(place)
    assert str(place) in run("show", place)
    run("patch", place, "-o", out)
    assert files_of(place) == before
    assert without_manifest(files_of(out)) == without_manifest(files)
    run("check", out)
    run("verify", out)
    assert np.array_equal(logits(out, place.with_name("logits")), right)

    run("patch", "--in-place", place)
    run("check", place)
    run("verify", place)
    found = {n: d for n, d in files_of(place).items() if not n.startswith(FOLDER)}
    assert without_manifest(found) == without_manifest(files)
    run("undo", place)
    assert files_of(place) == before


def test_a_place_that_is_no_unicode(tmp_path: Path) -> None:
    """Bytes that are not UTF-8, which POSIX disks can hold."""
    if sys.platform != "linux":
        pytest.skip("this system has no such names")
    place = tmp_path / os.fsdecode(b"p\xff\xfe")
    shutil.copytree(PACK, place)
    before = files_of(place)
    out = tmp_path / os.fsdecode(b"out\xff")
    for args in (("patch", place, "-o", out), ("check", out), ("verify", out)):
        done = subprocess.run(
            [sys.executable, "-m", "packimport", *map(str, args)], capture_output=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, b"")
    assert files_of(place) == before


def hub_of(pack: Path, cache: Path) -> Path:
    """A snapshot as huggingface_hub lays it out: links into blobs/ named by their hashes."""
    repo = cache / "models--some org--päck"
    snapshot = repo / "snapshots" / ("0123abcd" * 5)
    snapshot.mkdir(parents=True)
    (repo / "blobs").mkdir()
    for path in pack.iterdir():
        blob = repo / "blobs" / hashlib.sha256(path.read_bytes()).hexdigest()
        shutil.copy(path, blob)
        (snapshot / path.name).symlink_to(f"../../blobs/{blob.name}")
    return snapshot


@pytest.mark.skipif(sys.platform == "win32", reason="needs links")
def test_a_snapshot_of_a_hub_cache(
    tmp_path: Path, expected: tuple[dict[str, bytes], np.ndarray]
) -> None:
    files, right = expected
    snapshot = hub_of(PACK, tmp_path / "hub cache")
    before = files_of(tmp_path / "hub cache")
    report = json.loads(run("check", snapshot, "--format", "json", code=1))
    assert report["container"]["format"] == "hub snapshot"
    run("patch", snapshot, "-o", tmp_path / "out")
    written = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert {path.stat().st_nlink for path in written} == {1}
    assert not any(path.is_symlink() for path in written)
    assert without_manifest(files_of(tmp_path / "out")) == without_manifest(files)
    # What was written becomes a snapshot itself, is read as one, and runs.
    again = hub_of(tmp_path / "out", tmp_path / "second cache")
    run("check", again)
    run("verify", again)
    assert np.array_equal(logits(again, tmp_path / "logits"), right)
    for target in (snapshot.with_name("other"), snapshot.parents[1] / "blobs" / "out"):
        done = subprocess.run(
            [sys.executable, "-m", "packimport", "patch", str(snapshot), "-o", str(target)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 3
        assert "the output lies inside the pack" in done.stderr
    assert files_of(tmp_path / "hub cache") == before


@pytest.mark.parametrize("form", FORMATS)
def test_an_archive_goes_round(
    form: str, tmp_path: Path, expected: tuple[dict[str, bytes], np.ndarray]
) -> None:
    """From an archive in a long path to a folder, which is archived, checked and run again."""
    deep = tmp_path / PLACES["other scripts"] / ("d" * 200)
    deep.mkdir(parents=True)
    files, right = expected
    run("patch", archive_of(files_of(PACK, "top/"), deep / f"a b.{form}"), "-o", deep / "out")
    assert without_manifest(files_of(deep / "out")) == without_manifest(files)
    again = archive_of(files_of(deep / "out"), deep / f"é.{form}")
    run("check", again)
    run("verify", again)
    assert np.array_equal(logits(deep / "out", deep / "logits"), right)
