from __future__ import annotations

import errno
import hashlib
import json
import os
import stat
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from little_packs import FILES, contents, edit_of, make_pack, make_snapshot, manifest_of, names_in

from packimport.errors import ContainerError
from packimport.pack import copying, writer
from packimport.pack.container import open_container
from packimport.pack.documents import validate
from packimport.pack.edits import Edit
from packimport.pack.manifest import MANIFEST, FileRecord, Manifest, read_manifest
from packimport.pack.verification import verify
from packimport.pack.writer import write_container

posix = pytest.mark.skipif(sys.platform == "win32", reason="needs links or modes of POSIX")

# Larger than a chunk of the copy and of the hash, and no multiple of either.
BIG = b"".join(hashlib.sha256(bytes([i % 256, i // 256])).digest() * 1024 for i in range(600))
BIG = BIG[:-5]


def data_edit(offset: int, new: bytes) -> Edit:
    return edit_of(FILES["model.onnx.data"], "model.onnx.data", offset, new)


def write(
    root: Path, out: Path, edits: list[Edit] | None = None, extra: dict[str, bytes] | None = None
) -> Manifest:
    return write_container(open_container(root), out, edits or [], extra or {}, manifest_of)


def refused(root: Path, out: Path, edits: list[Edit] | None = None, **extra: bytes) -> str:
    """The error of a write, which must leave the folder of `out` as it was."""
    before = names_in(out.parent) if out.parent.is_dir() else None
    source = contents(root)
    with pytest.raises(ContainerError) as caught:
        write(root, out, edits, extra)
    assert (names_in(out.parent) if out.parent.is_dir() else None) == before
    assert contents(root) == source
    return str(caught.value)


class TestWhatIsWritten:
    def test_only_the_bytes_of_the_edits_differ(self, tmp_path: Path) -> None:
        root = make_pack(tmp_path / "p")
        (root / "empty folder").mkdir()
        first, last = data_edit(0, b"\xff" * 300), data_edit(69_990, b"\xfe" * 10)
        manifest = write(root, tmp_path / "out", [last, first, first])

        expected = bytearray(FILES["model.onnx.data"])
        expected[:300], expected[69_990:] = first.new, last.new
        found = contents(tmp_path / "out")
        assert list(json.loads(found.pop(MANIFEST))["files"][0]) == ["name", "size", "sha256"]
        assert found == {**FILES, "model.onnx.data": bytes(expected)}
        assert (tmp_path / "out" / "empty folder").is_dir()
        assert contents(root) == FILES
        assert names_in(tmp_path) == ["out", "p"]
        assert [file.name for file in manifest.files] == sorted(FILES)
        for file in manifest.files:
            assert file.size == len(found[file.name])
            assert file.sha256 == hashlib.sha256(found[file.name]).hexdigest()

    def test_the_manifest_is_valid_and_true(self, tmp_path: Path) -> None:
        root = make_pack(tmp_path / "p")
        manifest = write(root, tmp_path / "out", [data_edit(5, b"new")], {"config.json": b"{}"})
        container = open_container(tmp_path / "out")
        text = container.read_bytes(MANIFEST, 10**6)
        validate(json.loads(text), "packimport.schema.json", MANIFEST)
        assert read_manifest(container) == manifest
        assert verify(container, manifest).ok
        assert container.read_bytes("config.json", 10) == b"{}"
        assert MANIFEST not in [file.name for file in manifest.files]

    def test_a_written_container_is_written_again(self, tmp_path: Path) -> None:
        root = make_pack(tmp_path / "p")
        first = write(root, tmp_path / "one", [data_edit(5, b"new")])
        assert write(tmp_path / "one", tmp_path / "two") == first
        assert contents(tmp_path / "two") == contents(tmp_path / "one")

    def test_added_files_may_lie_in_new_folders(self, tmp_path: Path) -> None:
        root = make_pack(tmp_path / "p")
        write(root, tmp_path / "out", extra={"a/b/c.json": b"1", "cache/d.json": b"2"})
        found = contents(tmp_path / "out")
        assert (found["a/b/c.json"], found["cache/d.json"]) == (b"1", b"2")

    @posix
    def test_times_and_permission_bits_are_kept(self, tmp_path: Path) -> None:
        root = make_pack(tmp_path / "p")
        for name, mode in (("model.onnx", 0o755), ("model.onnx.data", 0o400)):
            os.utime(root / name, ns=(1_000_000_000, 1_234_567_890_123_456_789))
            (root / name).chmod(mode)
        (root / "genai_config.json").chmod(0o4777)
        write(root, tmp_path / "out", [data_edit(5, b"new")])
        for name, mode in (("model.onnx", 0o755), ("model.onnx.data", 0o400)):
            info = (tmp_path / "out" / name).stat()
            assert stat.S_IMODE(info.st_mode) == mode
            assert info.st_mtime_ns == 1_234_567_890_123_456_789
        assert stat.S_IMODE((tmp_path / "out" / "genai_config.json").stat().st_mode) == 0o777
        mask = os.umask(0)
        os.umask(mask)
        assert stat.S_IMODE((tmp_path / "out").stat().st_mode) == 0o777 & ~mask

    @posix
    @pytest.mark.parametrize("mask", [0o022, 0o077])
    def test_new_files_are_readable_as_the_umask_says(self, mask: int, tmp_path: Path) -> None:
        """A pack that root patched is served by another user."""
        root = make_pack(tmp_path / "p")
        before = os.umask(mask)
        try:
            write(root, tmp_path / "out", extra={"config.json": b"{}"})
        finally:
            os.umask(before)
        for name in ("config.json", "packimport.json"):
            assert stat.S_IMODE((tmp_path / "out" / name).stat().st_mode) == 0o666 & ~mask

    @posix
    def test_files_are_real_and_have_one_link(self, tmp_path: Path) -> None:
        snapshot = make_snapshot(tmp_path / "cache")
        os.link((snapshot / "model.onnx").resolve(), tmp_path / "another link")
        (snapshot / "twin.data").symlink_to("model.onnx.data")
        write(snapshot, tmp_path / "out", [data_edit(5, b"new")])
        for path in (tmp_path / "out").rglob("*"):
            assert not path.is_symlink()
            assert path.is_dir() or path.stat().st_nlink == 1
        found = contents(tmp_path / "out")
        del found[MANIFEST]
        assert found.pop("twin.data") == FILES["model.onnx.data"]
        assert found.pop("model.onnx.data")[5:8] == b"new"
        assert found == {k: v for k, v in FILES.items() if k != "model.onnx.data"}

    def test_long_paths_with_spaces_and_other_scripts(self, tmp_path: Path) -> None:
        name = "/".join(["d " * 45 + "x"] * 4) + "/模型 \u00fc.bin"
        root = make_pack(tmp_path / "the pack", {**FILES, name: b"deep"})
        write(root, tmp_path / ("out \u00fc " * 20))
        assert contents(tmp_path / ("out \u00fc " * 20))[name] == b"deep"

    def test_progress_is_told_in_bytes(self, tmp_path: Path) -> None:
        seen: list[tuple[int, int]] = []
        root = open_container(make_pack(tmp_path / "p", {**FILES, "big": BIG}))
        write_container(
            root,
            tmp_path / "out",
            [],
            {},
            manifest_of,
            on_progress=lambda done, total: seen.append((done, total)),
        )
        total = sum(map(len, FILES.values())) + len(BIG)
        assert seen == sorted(seen)
        assert seen[-1] == (total, total)


def no_way(*_: object) -> int:
    raise OSError(errno.EXDEV, "no such way here")


def piecemeal_clone(source: int, copy: int) -> bool:
    """Stands for a disk that can clone, which the test machine's need not be."""
    while data := os.read(source, 2**20):
        os.write(copy, data)
    return True


class TestWaysToCopy:
    """Whichever way the system has, the same bytes arrive."""

    @pytest.fixture(params=["kernel", "sendfile", "buffer", "clone"])
    def way(self, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
        way: str = request.param
        if way in {"sendfile", "buffer"}:
            monkeypatch.setattr(os, "copy_file_range", no_way, raising=False)
        if way == "buffer":
            monkeypatch.setattr(os, "sendfile", no_way, raising=False)
        if way == "clone":
            monkeypatch.setattr(copying, "_clone", piecemeal_clone)
        return way

    def test_a_large_file_with_edits_across_every_border(self, tmp_path: Path, way: str) -> None:
        root = make_pack(tmp_path / "p", {**FILES, "big": BIG})
        borders = [0, 2**20, 2**23, 2 * 2**23, len(BIG)]
        edits = [
            edit_of(BIG, "big", max(0, border - 10), bytes([i + 1]) * 20)
            for i, border in enumerate(borders[:-1])
        ]
        edits.append(edit_of(BIG, "big", len(BIG) - 1, b"Z"))
        # Longer than a chunk of the copy.
        edits.append(edit_of(BIG, "big", 2**20 + 100, b"L" * (2**23 - 2**20 - 200)))
        manifest = write(root, tmp_path / "out", edits)
        expected = bytearray(BIG)
        for edit in edits:
            expected[edit.offset : edit.end] = edit.new
        assert (tmp_path / "out" / "big").read_bytes() == expected
        record = next(file for file in manifest.files if file.name == "big")
        assert record.sha256 == hashlib.sha256(expected).hexdigest()

    def test_a_file_that_ends_early_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("_by_range", "_by_sendfile", "_by_buffer"):
            monkeypatch.setattr(copying, name, lambda *_: 0)
        assert "changed since" in refused(make_pack(tmp_path / "p"), tmp_path / "out")


@given(
    data=st.binary(max_size=60),
    spans=st.lists(st.tuples(st.integers(-2, 62), st.binary(max_size=8)), max_size=4),
)
@settings(deadline=None, max_examples=40)
def test_any_edits(data: bytes, spans: list[tuple[int, bytes]]) -> None:
    with tempfile.TemporaryDirectory() as name:
        root = make_pack(Path(name) / "p", {"model.onnx": data})
        edits = [edit_of(data, "model.onnx", offset, new) for offset, new in spans]
        inside = all(e.new and e.offset >= 0 and e.end <= len(data) for e in edits)
        apart = all(
            a.end <= b.offset or b.end <= a.offset or (a.offset, a.new) == (b.offset, b.new)
            for a in edits
            for b in edits
        )
        if inside and apart:
            expected = bytearray(data)
            for edit in edits:
                expected[edit.offset : edit.end] = edit.new
            write(root, Path(name) / "out", edits)
            assert (Path(name) / "out" / "model.onnx").read_bytes() == expected
        else:
            with pytest.raises(ContainerError):
                write(root, Path(name) / "out", edits)
            assert names_in(Path(name)) == ["p"]


class TestRefusals:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        return make_pack(tmp_path / "p")

    @pytest.mark.parametrize("kind", ["folder", "file", "full", "link"])
    def test_an_output_that_exists(self, root: Path, tmp_path: Path, kind: str) -> None:
        out = tmp_path / "out"
        if kind == "file":
            out.write_bytes(b"mine")
        elif kind == "link":
            if sys.platform == "win32":
                pytest.skip("links need a privilege on Windows")
            out.symlink_to("nowhere")
        else:
            out.mkdir()
        if kind == "full":
            (out / "mine").write_bytes(b"mine")
        assert "the output exists" in refused(root, out)

    def test_an_output_inside_the_pack(self, root: Path) -> None:
        for out in (root / "out", root / "cache" / "out", root / "cache" / ".." / "out"):
            assert "inside the pack" in refused(root, out)

    @posix
    def test_an_output_inside_the_pack_by_a_link(self, root: Path, tmp_path: Path) -> None:
        (tmp_path / "door").symlink_to(root / "cache")
        assert "inside the pack" in refused(root, tmp_path / "door" / "out")

    @posix
    def test_an_output_inside_a_hub_cache(self, tmp_path: Path) -> None:
        snapshot = make_snapshot(tmp_path / "cache")
        for parent in (snapshot, snapshot.parent, snapshot.parent.parent / "blobs"):
            assert "inside the pack" in refused(snapshot, parent / "out")

    def test_an_output_without_a_parent(self, root: Path, tmp_path: Path) -> None:
        assert "does not exist" in refused(root, tmp_path / "absent" / "out")
        assert "does not exist" in refused(root, root / "model.onnx" / "out")

    def test_the_pack_itself(self, root: Path) -> None:
        assert "the output exists" in refused(root, root)

    def test_edits_made_for_other_bytes(self, root: Path, tmp_path: Path) -> None:
        wrong = edit_of(b"x" * 100, "model.onnx.data", 7, b"new")
        message = refused(root, tmp_path / "out", [data_edit(50, b"good"), wrong])
        assert "not those that were checked" in message
        assert "offset 7" in message

    def test_edits_outside_the_files(self, root: Path, tmp_path: Path) -> None:
        assert "not inside" in refused(root, tmp_path / "out", [data_edit(69_999, b"ab")])
        lost = edit_of(b"abc", "lost", 0, b"x")
        assert "lacks" in refused(root, tmp_path / "out", [lost])

    def test_edits_of_the_manifest(self, root: Path, tmp_path: Path) -> None:
        write(root, tmp_path / "one")
        edit = edit_of(contents(tmp_path / "one")[MANIFEST], MANIFEST, 0, b" ")
        assert "lacks" in refused(tmp_path / "one", tmp_path / "two", [edit])

    def test_edits_that_overlap(self, root: Path, tmp_path: Path) -> None:
        edits = [data_edit(5, b"abc"), data_edit(7, b"de")]
        assert "overlap" in refused(root, tmp_path / "out", edits)

    @pytest.mark.parametrize(
        ("name", "why"),
        [
            ("model.onnx", "is taken"),
            ("MODEL.onnx", "is taken"),
            ("cache", "is taken"),
            (MANIFEST, "is taken"),
            ("../x", "leaves"),
            ("/x", "absolute"),
            ("nul", "device"),
        ],
    )
    def test_added_files_by_bad_names(
        self, root: Path, tmp_path: Path, name: str, why: str
    ) -> None:
        assert why in refused(root, tmp_path / "out", **{name: b"x"})

    def test_a_pack_that_changed_since_it_was_opened(self, root: Path, tmp_path: Path) -> None:
        container = open_container(root)
        (root / "new").write_bytes(b"")
        with pytest.raises(ContainerError, match="changed since"):
            write_container(container, tmp_path / "out", [], {}, manifest_of)
        assert names_in(tmp_path) == ["p"]

    def test_a_pack_that_changes_while_it_is_written(self, root: Path, tmp_path: Path) -> None:
        def meddle(files: tuple[FileRecord, ...]) -> Manifest:
            (root / "model.onnx").write_bytes(b"meanwhile")
            return manifest_of(files)

        with pytest.raises(ContainerError, match="changed since") as caught:
            write_container(open_container(root), tmp_path / "out", [], {}, meddle)
        assert caught.value.place == "model.onnx"
        assert names_in(tmp_path) == ["p"]

    @pytest.mark.parametrize("content", [None, b"theirs"])
    def test_an_output_that_appears_meanwhile(
        self, root: Path, tmp_path: Path, content: bytes | None
    ) -> None:
        out = tmp_path / "out"

        def meddle(files: tuple[FileRecord, ...]) -> Manifest:
            out.mkdir()
            if content is not None:
                (out / "theirs").write_bytes(content)
            return manifest_of(files)

        with pytest.raises(ContainerError, match="meanwhile"):
            write_container(open_container(root), out, [], {}, meddle)
        assert names_in(tmp_path) == ["out", "p"]
        assert contents(out) == ({} if content is None else {"theirs": content})


class TestFaults:
    """What the disk refuses is an error with a cure, and leaves nothing behind."""

    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        return make_pack(tmp_path / "p", {**FILES, "big": BIG})

    @pytest.mark.parametrize(
        "fault",
        [
            (errno.ENOSPC, "the disk is full", "Free some space"),
            (errno.EDQUOT, "quota", "Free some space"),
            (errno.EIO, "the disk reports a fault", "Check the disk"),
            (errno.EROFS, "read-only", "another disk"),
        ],
    )
    @pytest.mark.parametrize("call", ["write", "fsync", "mkdir", "open"])
    def test_at_any_call(
        self,
        root: Path,
        monkeypatch: pytest.MonkeyPatch,
        fault: tuple[int, str, str],
        call: str,
    ) -> None:
        code, message, cure = fault
        real = getattr(os, call)

        def fail(*arguments: object, **options: object) -> object:
            if call == "open" and not arguments[1] & os.O_CREAT:  # type: ignore[operator]  # flags
                return real(*arguments, **options)
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(os, "copy_file_range", no_way, raising=False)
        monkeypatch.setattr(os, "sendfile", no_way, raising=False)
        monkeypatch.setattr(os, call, fail)
        text = refused(root, root.parent / "out")
        assert message in text
        assert cure in text

    def test_permission_to_write_is_missing(
        self, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def denied(*_: object, **__: object) -> str:
            raise PermissionError(errno.EACCES, "Permission denied")

        monkeypatch.setattr(tempfile, "mkdtemp", denied)
        assert "permission is denied" in refused(root, tmp_path / "out")

    @pytest.mark.parametrize("failure", [KeyboardInterrupt, RuntimeError])
    @pytest.mark.parametrize("moment", ["progress", "manifest", "rename"])
    def test_an_interrupt_leaves_nothing(
        self,
        root: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        failure: type[BaseException],
        moment: str,
    ) -> None:
        def fail(*_: object) -> Manifest:
            raise failure

        if moment == "rename":
            monkeypatch.setattr(Path, "rename", fail)
        with pytest.raises(failure):
            write_container(
                open_container(root),
                tmp_path / "out",
                [],
                {},
                fail if moment == "manifest" else manifest_of,
                on_progress=fail if moment == "progress" else None,
            )
        assert names_in(tmp_path) == ["p"]

    @pytest.mark.parametrize("moment", ["manifest", "rename"])
    def test_another_run_is_faster(
        self, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
    ) -> None:
        out, real = tmp_path / "out", Path.rename

        def rename(path: Path, target: Path) -> Path:
            make_pack(out, {"mine": b""})
            return real(path, target)

        def make_manifest(files: tuple[FileRecord, ...]) -> Manifest:
            if moment == "manifest":
                make_pack(out, {"mine": b""})
            return manifest_of(files)

        if moment == "rename":
            monkeypatch.setattr(Path, "rename", rename)
        with pytest.raises(ContainerError, match="made by another program meanwhile"):
            write_container(open_container(root), out, [], {}, make_manifest)
        assert contents(out) == {"mine": b""}
        assert names_in(tmp_path) == ["out", "p"]

    def test_the_first_cause_is_told(
        self, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One file fails, the others stop: the error is that of the one."""
        make_pack(root, {f"more/{i}": BIG for i in range(4)})
        wrong = edit_of(b"x" * 100, "more/3", 50, b"new")
        monkeypatch.setattr(copying, "_COPY_CHUNK", 1000)
        assert "not those that were checked" in refused(root, tmp_path / "out", [wrong])

    def test_a_virus_scanner_is_waited_for(
        self, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class SharingViolation(PermissionError):
            winerror = 32

        real, tries = Path.rename, iter([True, True, False])

        def rename(path: Path, target: Path) -> Path:
            if next(tries):
                raise SharingViolation(errno.EACCES, "in use")
            return real(path, target)

        monkeypatch.setattr(writer, "_RENAME_SECONDS", 0)
        monkeypatch.setattr(Path, "rename", rename)
        write(root, tmp_path / "out")
        assert verify(open_container(tmp_path / "out"), manifest_of(())).extra == tuple(
            sorted([*FILES, "big"])
        )
