"""Archives: what is unpacked is what was packed, and nothing of it is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path

import pytest
from archives import FORMATS, archive_of, compressed, tar_bytes, zstd
from little_packs import FILES, make_pack, make_snapshot, names_in

from packimport.errors import ContainerError, DependencyError
from packimport.pack import archive
from packimport.pack.archive import archive_format, opened
from packimport.pack.container import open_container

posix = pytest.mark.skipif(os.name != "posix", reason="POSIX only")


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's temporary folder, empty; what is unpacked lands here."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("top", ["", "a pack/"])
def test_the_files_are_those_that_were_packed(
    form: str, top: str, tmp_path: Path, scratch: Path
) -> None:
    path = archive_of({top + name: data for name, data in FILES.items()}, tmp_path / f"p.{form}")
    with opened(path) as container:
        assert container.format == form
        assert container.path == path
        assert container.files == tuple(sorted(FILES))
        for name, data in FILES.items():
            assert container.read_bytes(name, 10**6) == data
        assert container.changed() == ()
        inside = [file for file in scratch.rglob("*") if file.is_file()]
        assert {file.stat().st_nlink for file in inside} == {1}
        if os.name == "posix":
            (hidden,) = scratch.iterdir()
            assert hidden.stat().st_mode & 0o077 == 0
    assert names_in(scratch) == []


def test_a_folder_is_opened_as_it_is(tmp_path: Path, scratch: Path) -> None:
    make_pack(tmp_path / "p")
    with opened(tmp_path / "p") as container:
        assert container.format == "folder"
        assert names_in(scratch) == []


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_every_kind_of_tar(form: int, tmp_path: Path) -> None:
    files = {f"{'folder/' * 12}{'f' * 50}": b"1", **FILES}
    if form != tarfile.USTAR_FORMAT:
        files["\u00fc" * 90 + "/" + "n" * 200] = b"long"
    path = compressed(tar_bytes(files, form), tmp_path / "p.tar")
    with opened(path) as container:
        assert container.files == tuple(sorted(files))
        assert all(container.read_bytes(name, 10**6) == data for name, data in files.items())


@posix
@pytest.mark.parametrize("flags", ["-cf", "-czf", "--zstd -cf"])
def test_a_tar_by_the_system(flags: str, tmp_path: Path) -> None:
    make_pack(tmp_path / "p")
    path = tmp_path / "made"
    command = ["tar", *flags.split(), str(path), "-C", str(tmp_path), "./p"]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("this tar lacks the format")
    with opened(path) as container:
        assert container.files == tuple(sorted(FILES))


def test_a_tar_that_predates_ustar_is_known_by_its_name(tmp_path: Path) -> None:
    data = bytearray(tar_bytes({"model.onnx": b"x"}, tarfile.USTAR_FORMAT))
    data[257:345] = bytes(88)  # no magic and what follows it
    total = sum(data[:148]) + 8 * 32 + sum(data[156:512])
    data[148:156] = b"%06o\0 " % total
    path = tmp_path / "old.tar"
    path.write_bytes(data)
    with opened(path) as container:
        assert container.files == ("model.onnx",)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_both_methods_of_zip(method: int, tmp_path: Path) -> None:
    path = tmp_path / "p.zip"
    with zipfile.ZipFile(path, "w", method) as made:
        made.mkdir("empty") if sys.version_info >= (3, 11) else made.writestr("empty/", b"")
        for name, data in FILES.items():
            made.writestr(name, data)
        made.comment = b"a comment"
    with opened(path) as container:
        assert container.folders == ("cache", "cache/\u00fcnder", "empty")
        assert all(container.read_bytes(name, 10**6) == data for name, data in FILES.items())


def test_zip64(tmp_path: Path) -> None:
    path = tmp_path / "p.zip"
    with zipfile.ZipFile(path, "w") as made, made.open("model.onnx", "w", force_zip64=True) as file:
        file.write(b"graph")
    with opened(path) as container:
        assert container.read_bytes("model.onnx", 5) == b"graph"


def test_several_frames_of_zstandard_are_one_file(tmp_path: Path) -> None:
    data = tar_bytes(FILES)
    path = tmp_path / "p.tar.zst"
    path.write_bytes(zstd(data[:1000]) + zstd(data[1000:]))
    with opened(path) as container:
        assert container.files == tuple(sorted(FILES))


def test_the_first_bytes_tell_an_archive_and_not_its_name(tmp_path: Path) -> None:
    for form in FORMATS:
        assert (
            archive_format(archive_of(FILES, tmp_path / f"p.{form}").rename(tmp_path / form))
            == form
        )
    assert archive_format(archive_of(FILES, tmp_path / "p.zip").rename(tmp_path / "p.tar")) == "zip"
    (tmp_path / "config.json").write_bytes(b"{}")
    assert archive_format(tmp_path / "config.json") is None
    assert archive_format(tmp_path) is None
    assert archive_format(tmp_path / "missing") is None


def test_zstandard_that_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = archive_of(FILES, tmp_path / "p.tar.zst")
    monkeypatch.setattr(archive, "_module", lambda name: None)
    with pytest.raises(DependencyError, match=r"pip install zstandard"), opened(path):
        pass


@pytest.mark.parametrize("form", FORMATS)
def test_progress_ends_at_the_size_of_the_archive(form: str, tmp_path: Path) -> None:
    path = archive_of(FILES, tmp_path / f"p.{form}")
    seen: list[tuple[int, int]] = []
    with opened(path, on_progress=lambda done, total: seen.append((done, total))):
        size = path.stat().st_size
        assert {total for _, total in seen} == {size}
        assert all(0 < done <= size for done, _ in seen)


@pytest.mark.parametrize("form", FORMATS)
def test_no_pack_in_it_names_the_archive(form: str, tmp_path: Path, scratch: Path) -> None:
    path = archive_of({"notes.txt": b""}, tmp_path / f"p.{form}")
    with pytest.raises(ContainerError, match="neither genai_config") as caught, opened(path):
        pass
    assert caught.value.place == str(path)
    assert names_in(scratch) == []


@posix
def test_a_tar_of_a_hub_snapshot_says_how_to_make_it(tmp_path: Path) -> None:
    make_snapshot(tmp_path / "cache")
    path = tmp_path / "p.tar"
    with tarfile.open(path, "w") as made:
        made.add(tmp_path / "cache", "cache")
    with pytest.raises(ContainerError, match="--dereference"), opened(path):
        pass


def test_an_error_of_the_caller_removes_what_was_unpacked(tmp_path: Path, scratch: Path) -> None:
    path = archive_of(FILES, tmp_path / "p.zip")
    with pytest.raises(KeyboardInterrupt), opened(path):
        assert names_in(scratch) != []
        raise KeyboardInterrupt
    assert names_in(scratch) == []


SLEEPER = """
import sys, time
from packimport.pack.archive import opened
from packimport.pack.signals import interruptible
with opened(sys.argv[1]), interruptible():
    print("open", flush=True)
    for _ in range(600):  # a signal just before a sleep does not end it
        time.sleep(0.1)
"""


@posix
@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGHUP", 129)])
def test_a_signal_removes_what_was_unpacked(
    name: str, code: int, tmp_path: Path, scratch: Path
) -> None:
    path = archive_of(FILES, tmp_path / "p.zip")
    environment = {**os.environ, "TMPDIR": str(scratch)}
    command = [sys.executable, "-c", SLEEPER, str(path)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        run.stdout.readline()
        assert names_in(scratch) != []
        run.send_signal(getattr(signal, name))
        assert run.wait(20) == code
    assert names_in(scratch) == []


@posix
def test_what_a_killed_run_left_is_removed_by_the_next(tmp_path: Path, scratch: Path) -> None:
    path = archive_of(FILES, tmp_path / "p.zip")
    environment = {**os.environ, "TMPDIR": str(scratch)}
    command = [sys.executable, "-c", SLEEPER, str(path)]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        run.stdout.readline()
        run.kill()
    assert names_in(scratch) != []
    with opened(path):
        pass
    assert names_in(scratch) == []


def test_signals_of_the_caller_stay_as_they_were(tmp_path: Path) -> None:
    path = archive_of(FILES, tmp_path / "p.zip")
    before = signal.getsignal(signal.SIGTERM)
    with opened(path):
        pass
    assert signal.getsignal(signal.SIGTERM) == before


def test_an_archive_is_no_folder_to_other_commands(tmp_path: Path) -> None:
    path = archive_of(FILES, tmp_path / "p.zip")
    with pytest.raises(ContainerError, match=r"packimport patch .*p\.zip -o OUT"):
        open_container(path)


def test_scratch_is_where_the_caller_says(tmp_path: Path, scratch: Path) -> None:
    path = archive_of(FILES, tmp_path / "p.zip")
    (tmp_path / "here").mkdir()
    with opened(path, scratch=tmp_path / "here"):
        assert names_in(scratch) == []
        assert names_in(tmp_path / "here") != []
    assert names_in(tmp_path / "here") == []


def test_a_scratch_folder_that_is_missing(tmp_path: Path) -> None:
    path = archive_of(FILES, tmp_path / "p.zip")
    with pytest.raises(ContainerError) as caught, opened(path, scratch=tmp_path / "gone"):
        pass
    assert caught.value.place == str(tmp_path / "gone")


def test_an_archive_that_changes_meanwhile(tmp_path: Path) -> None:
    path = archive_of(FILES, tmp_path / "p.tar")

    def meddle(done: int, total: int) -> None:
        now = time.time_ns() + 5_000_000_000
        os.utime(path, ns=(now, now))

    with pytest.raises(ContainerError, match="changed since"), opened(path, on_progress=meddle):
        pass


def test_an_archive_of_several_packs(tmp_path: Path) -> None:
    files = {f"{name}/{file}": data for name in ("cpu", "npu") for file, data in FILES.items()}
    path = archive_of(files, tmp_path / "many.zip")
    with pytest.raises(ContainerError, match="a folder of packs") as caught, opened(path):
        pass
    assert caught.value.fix == "Unpack it, and pass one of its folders, such as cpu"
