"""The commands `patch --in-place`, `--dry-run`, `undo` and `verify`, run as users run them."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from builders import plain, tiny_pack
from test_cli import packimport
from test_patch import CONFIG

from packimport import check, patch, patch_in_place, undo
from packimport.errors import ContainerError
from packimport.pack.container import open_container
from packimport.pack.documents import validate
from packimport.pack.journal import FOLDER, UNFINISHED
from packimport.pack.manifest import read_manifest

PACKS = Path(__file__).parent / "packs"
DATA = Path(__file__).parent / "data"


def wrong_pack(folder: Path, config: dict[str, object] | None = CONFIG) -> Path:
    return tiny_pack(folder, rows=256, tables=plain(256, 8, 500000.0), config=config)


def state(root: Path) -> dict[str, tuple[bytes, int]]:
    """Every file with its bytes and its time."""
    return {
        path.relative_to(root).as_posix(): (path.read_bytes(), path.stat().st_mtime_ns)
        for path in root.rglob("*")
        if path.is_file()
    }


def test_there_and_back(tmp_path: Path) -> None:
    pack = wrong_pack(tmp_path / "p")
    before = state(pack)
    done = packimport("patch", "--in-place", pack)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"packimport undo {pack}" in done.stdout
    # Of cos and of sin, 256 rows of 8 float32: what else is written is said apart.
    assert f"{pack}: ok; 16384 bytes of tables written\n" in done.stdout
    assert " bytes in all, with the journal and packimport.json\n" in done.stdout
    assert check(pack).verdict == "ok"
    assert packimport("verify", pack).returncode == 0

    after = state(pack)
    again = packimport("patch", "--in-place", pack)
    assert (again.returncode, again.stdout) == (0, f"{pack}: nothing to do\n")
    assert state(pack) == after

    back = packimport("undo", pack)
    assert (back.returncode, back.stderr) == (0, "")
    assert state(pack) == before
    assert packimport(pack).returncode == 1
    assert packimport("undo", pack).returncode == 3


def test_a_config_is_added_where_there_was_none(tmp_path: Path) -> None:
    pack = wrong_pack(tmp_path / "p", None)
    source = tiny_pack(tmp_path / "source", rows=256, config=CONFIG)
    before = state(pack)
    patched = patch_in_place(pack, config=source)
    assert patched.added == ("config.json", "packimport.json")
    assert (pack / "config.json").read_bytes() == (source / "config.json").read_bytes()
    report = check(pack)
    assert report.verdict == "ok"
    assert report.semantics.declaration is not None
    assert report.semantics.declaration.origin == "packimport.json"
    undo(pack)
    assert state(pack) == before


def test_the_result_is_that_of_a_copy(tmp_path: Path) -> None:
    pack = wrong_pack(tmp_path / "p")
    patch(pack, tmp_path / "out")
    patch_in_place(pack)
    for path in (tmp_path / "out").iterdir():
        if path.name != "packimport.json":
            assert (pack / path.name).read_bytes() == path.read_bytes()
    # A copy of what was patched in place is a pack like any other, fully hashed.
    patch(pack, tmp_path / "again")
    assert not (tmp_path / "again" / FOLDER).exists()
    verified = packimport("verify", tmp_path / "again", "--format", "json")
    assert json.loads(verified.stdout)["unhashed"] == []


def test_another_schedule_on_top(tmp_path: Path) -> None:
    """The spans that both patches wrote are hashed, and each can be taken back by itself."""
    pack = wrong_pack(tmp_path / "p")
    patch_in_place(pack)
    once = state(pack)
    other = tiny_pack(tmp_path / "other", rows=256, config={"rope_theta": 777.0})
    patch_in_place(pack, config=other)
    assert check(pack).verdict == "ok"
    assert packimport("verify", pack).returncode == 0
    undo(pack)
    assert state(pack) == once


class TestAfterACrash:
    @pytest.fixture
    def crashed(self, tmp_path: Path) -> Path:
        """As a crash leaves it before the last step: every span written, nothing committed."""
        pack = wrong_pack(tmp_path / "p")
        patch_in_place(pack)
        (pack / FOLDER / "0001.json").rename(pack / FOLDER / UNFINISHED)
        return pack

    @pytest.mark.parametrize(
        "command", [["check"], ["show"], ["verify"], ["patch", "--dry-run", "--in-place"]]
    )
    def test_what_only_reads_refuses_and_writes_nothing(
        self, crashed: Path, command: list[str]
    ) -> None:
        before = state(crashed)
        done = packimport(*command, crashed)
        assert done.returncode == 3
        assert "packimport undo" in done.stderr
        assert state(crashed) == before

    def test_check_says_it_in_json_too(self, crashed: Path) -> None:
        done = packimport(crashed, "--format", "json")
        assert done.returncode == 3
        report = json.loads(done.stdout)
        validate(report, "report.schema.json", "stdout")
        assert report["verdict"] == "unsupported"

    def test_a_copy_is_refused(self, crashed: Path, tmp_path: Path) -> None:
        assert packimport("patch", crashed, "-o", tmp_path / "out").returncode == 3
        assert not (tmp_path / "out").exists()

    def test_undo_restores_and_says_so(self, crashed: Path, tmp_path: Path) -> None:
        done = packimport("undo", crashed)
        assert done.returncode == 0
        assert "did not end" in done.stdout
        assert state(crashed).keys() == state(wrong_pack(tmp_path / "fresh")).keys()
        assert check(crashed).verdict == "mismatch"

    def test_patch_restores_says_so_and_patches(self, crashed: Path) -> None:
        done = packimport("patch", "--in-place", crashed)
        assert done.returncode == 0
        assert "did not end" in done.stderr
        assert check(crashed).verdict == "ok"
        assert packimport("undo", crashed).returncode == 0

    @pytest.mark.skipif(sys.platform == "win32", reason="needs SIGKILL")
    def test_the_command_killed_at_random_moments(self, tmp_path: Path) -> None:
        pack = wrong_pack(tmp_path / "p")
        before = state(pack)
        command = [sys.executable, "-m", "packimport", "patch", "--in-place", str(pack)]
        begin = time.perf_counter()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        seconds = time.perf_counter() - begin
        chance = random.Random(0)
        for _ in range(6):
            if (pack / FOLDER).exists():
                undo(pack)
            assert state(pack) == before
            child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            time.sleep(chance.uniform(0.5, 1.0) * seconds)
            child.send_signal(signal.SIGKILL)
            child.wait()
            if not (pack / FOLDER / UNFINISHED).exists():
                assert check(pack).verdict in ("ok", "mismatch")


class TestDryRun:
    @pytest.mark.parametrize("where", [["--in-place"], ["-o", "OUT"], []])
    def test_prints_the_edits_and_writes_nothing(self, tmp_path: Path, where: list[str]) -> None:
        pack = wrong_pack(tmp_path / "p")
        before = state(tmp_path)
        where = [str(tmp_path / "out") if part == "OUT" else part for part in where]
        done = packimport("patch", pack, "--dry-run", *where)
        assert (done.returncode, done.stderr) == (0, "")
        planned = json.loads(
            packimport("patch", pack, "--dry-run", *where, "--format", "json").stdout
        )
        assert state(tmp_path) == before
        assert sorted(path.name for path in tmp_path.iterdir()) == ["p"]
        validate(planned, "dry_run.schema.json", "stdout")
        assert planned["added"] == ["packimport.json"]
        assert f"{pack}: dry run, nothing was written; this would be changed\n" in done.stdout
        assert "  packimport.json: would be added\n" in done.stdout
        assert ("the journal" in done.stdout) == (where == ["--in-place"])

        patch_in_place(pack)
        manifest = json.loads((pack / "packimport.json").read_bytes())
        assert planned["edits"] == manifest["edits"]
        for edit in manifest["edits"]:
            assert edit["new_sha256"] in done.stdout
            assert f"{edit['length']} bytes at {edit['offset']}" in done.stdout

    def test_refuses_what_the_patch_would_refuse(self, tmp_path: Path) -> None:
        pack = wrong_pack(tmp_path / "p")
        done = packimport("patch", pack, "--dry-run", "-o", tmp_path)
        assert done.returncode == 3
        assert "the output exists" in done.stderr
        if sys.platform != "win32":
            os.link(pack / "model.onnx.data", tmp_path / "another name")
            assert packimport("patch", pack, "--dry-run", "--in-place").returncode == 3

    def test_a_pack_that_is_right(self, tmp_path: Path) -> None:
        pack = tiny_pack(tmp_path / "p", config={})
        head = f"{pack}: dry run, nothing was written; nothing to mend\n"
        added = "  packimport.json: would be added\n"
        journal = "  .packimport/: would hold the journal, for `packimport undo`\n"
        for place, text in (((), head + added), (("--in-place",), head + added + journal)):
            done = packimport("patch", pack, "--dry-run", *place)
            assert (done.returncode, done.stdout) == (0, text)
        done = packimport("patch", pack, "--in-place")
        assert done.stdout.startswith(f"{pack}: ok; nothing to mend\n  packimport.json: added\n")
        assert (pack / ".packimport").is_dir()
        done = packimport("patch", pack, "--dry-run", "--in-place")
        assert (done.returncode, done.stdout) == (0, head)
        # Another config that declares the same table: the manifest keeps what it says.
        config = tmp_path / "config.json"
        stated = json.loads((pack / "config.json").read_text(encoding="utf-8"))
        config.write_text(json.dumps({**stated, "rope_theta": 10000.0, "rope_scaling": None}))
        args = ("patch", pack, "--in-place", "--config", config)
        anew = "  packimport.json: would be written anew\n"
        old = (pack / "packimport.json").read_bytes()
        assert packimport(*args, "--dry-run").stdout == head + anew + journal
        assert (pack / "packimport.json").read_bytes() == old
        assert packimport(*args).returncode == 0
        assert (pack / "packimport.json").read_bytes() != old


@pytest.mark.parametrize("where", [[], ["--in-place", "-o", "out"], ["-o", "out", "--in-place"]])
def test_wrong_usage(tmp_path: Path, where: list[str]) -> None:
    done = packimport("patch", wrong_pack(tmp_path / "p"), *where)
    assert done.returncode == 2
    assert "-o OUT or --in-place" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["p"]


class TestVerify:
    def test_what_differs_is_named(self, tmp_path: Path) -> None:
        patch(wrong_pack(tmp_path / "p"), tmp_path / "out")
        out = tmp_path / "out"
        (out / "extra").write_bytes(b"")
        (out / "config.json").unlink()
        data = bytearray((out / "model.onnx.data").read_bytes())
        data[-1] ^= 1
        (out / "model.onnx.data").write_bytes(data)
        done = packimport("verify", out, "--format", "json")
        assert done.returncode == 1
        found = json.loads(done.stdout)
        validate(found, "verification.schema.json", "stdout")
        assert found == {
            "schema_version": 1,
            "verdict": "mismatch",
            "extra": ["extra"],
            "missing": ["config.json"],
            "changed": ["model.onnx.data"],
            "unhashed": [],
        }
        text = packimport("verify", out)
        assert text.returncode == 1
        for line in ("extra       extra", "missing     config.json", "changed     model.onnx.data"):
            assert line in text.stdout
        assert packimport("verify", out, "--quiet").stdout == ""

    def test_in_place_says_what_was_not_hashed(self, tmp_path: Path) -> None:
        pack = wrong_pack(tmp_path / "p")
        patch_in_place(pack)
        done = packimport("verify", pack)
        assert done.returncode == 0
        assert "not hashed  model.onnx.data" in done.stdout
        bare = read_manifest(open_container(pack))
        assert bare is not None
        count = sum(file.sha256 is None for file in bare.files)
        assert count > 1
        assert (
            f"nothing differs, as far as is known: of {count} files the manifest has the size only"
            in (done.stdout)
        )
        assert "every file" not in done.stdout
        manifest = read_manifest(open_container(pack))
        assert manifest is not None
        assert manifest.undo == f"{FOLDER}/0001.json"
        edit = manifest.edits[0]
        data = bytearray((pack / edit.file).read_bytes())
        data[edit.offset] ^= 1
        (pack / edit.file).write_bytes(data)
        done = packimport("verify", pack)
        assert done.returncode == 1
        assert f"changed     {edit.file}" in done.stdout

    def test_a_pack_without_a_manifest(self, tmp_path: Path) -> None:
        done = packimport("verify", wrong_pack(tmp_path / "p"))
        assert done.returncode == 3
        assert "no manifest" in done.stderr

    def test_an_archive(self, tmp_path: Path) -> None:
        patch(wrong_pack(tmp_path / "p"), tmp_path / "out")
        archive = shutil.make_archive(str(tmp_path / "packed"), "zip", tmp_path / "out")
        assert packimport("verify", archive).returncode == 0

    def test_a_manifest_of_the_first_version(self, tmp_path: Path) -> None:
        """Stored by the first packimport that wrote any: schema version 1."""
        patch(PACKS / "oga-0.11.2-llama3", tmp_path / "out")
        shutil.copy(DATA / "manifests" / "version-1.json", tmp_path / "out" / "packimport.json")
        done = packimport("verify", tmp_path / "out")
        assert (done.returncode, done.stderr) == (0, "")
        assert check(tmp_path / "out").verdict == "ok"
        again = patch_in_place(tmp_path / "out")
        assert again.written == 0


def test_links_of_a_hub_are_refused(tmp_path: Path) -> None:
    if sys.platform == "win32":
        pytest.skip("needs links")
    pack = wrong_pack(tmp_path / "models--a--b" / "snapshots" / "0123")
    blobs = tmp_path / "models--a--b" / "blobs"
    blobs.mkdir()
    for path in list(pack.iterdir()):
        path.rename(blobs / path.name)
        path.symlink_to(f"../../blobs/{path.name}")
    before = state(tmp_path)
    with pytest.raises(ContainerError, match="hub snapshot"):
        patch_in_place(pack)
    assert state(tmp_path) == before
