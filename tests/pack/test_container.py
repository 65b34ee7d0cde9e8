"""Links, names and spans of packs that come from strangers."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from little_packs import FILES, make_pack, make_snapshot

from packimport.errors import ContainerError
from packimport.pack import listing
from packimport.pack.container import open_container

posix = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such files or names")
LFS_POINTER = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\n"
    b"size 12345\n"
)


def refused(path: Path) -> ContainerError:
    with pytest.raises(ContainerError) as caught:
        open_container(path)
    return caught.value


def test_a_folder_is_listed_in_order(tmp_path: Path) -> None:
    (make_pack(tmp_path / "p") / "nothing here").mkdir()
    container = open_container(tmp_path / "p")
    assert container.files == tuple(sorted(FILES))
    assert container.folders == ("cache", "cache/\u00fcnder", "nothing here")
    assert container.graphs == ("model.onnx",)
    assert (container.format, container.notes) == ("folder", ())
    assert container.path == tmp_path / "p"
    assert container.has("cache/a meta.json")
    assert not container.has("cache")
    assert not container.has("Model.onnx")
    for name, data in FILES.items():
        assert container.size(name) == len(data)
        assert container.read_bytes(name, 10**6) == data
        assert container.resolve(name).read_bytes() == data
    assert container.changed() == ()


def test_a_path_of_300_characters(tmp_path: Path) -> None:
    name = "/".join(["d" * 90] * 4) + "/w.bin"
    container = open_container(make_pack(tmp_path / "p", {**FILES, name: b"deep"}))
    assert container.read_bytes(name, 10) == b"deep"


@pytest.mark.parametrize("missing", ["genai_config.json", "model.onnx"])
def test_a_config_or_a_graph_is_enough(tmp_path: Path, missing: str) -> None:
    files = {name: data for name, data in FILES.items() if name != missing}
    assert not open_container(make_pack(tmp_path, files)).has(missing)


@pytest.mark.parametrize(
    ("name", "message", "fix"),
    [
        ("model.onnx", "a pack is a folder", "Pass the folder"),
        ("pack.zip", "an archive that is not unpacked here", "packimport patch"),
        ("pack.tar.gz", "an archive that is not unpacked here", "packimport patch"),
        ("pack.TAR.ZST", "an archive that is not unpacked here", "packimport patch"),
        ("pack.7z", "an archive that is not unpacked here", "Unpack"),
        ("config.json", "a pack is a folder", "Pass the folder"),
    ],
)
def test_a_file_is_no_container(tmp_path: Path, name: str, message: str, fix: str) -> None:
    (tmp_path / name).write_bytes(b"x")
    error = refused(tmp_path / name)
    assert message in error.message
    assert fix in (error.fix or "")


def test_no_pack_is_named_as_such(tmp_path: Path) -> None:
    assert "no such folder" in refused(tmp_path / "absent").message
    assert "empty" in refused(tmp_path).message
    (tmp_path / "notes.txt").write_bytes(b"x")
    error = refused(tmp_path)
    assert "neither genai_config.json nor an .onnx file" in error.message
    assert error.found == "notes.txt"


@pytest.mark.parametrize("name", ["genai_config.json", "model.onnx"])
def test_a_folder_in_place_of_a_main_file(tmp_path: Path, name: str) -> None:
    files = {other: data for other, data in FILES.items() if other != name}
    make_pack(tmp_path, {**files, f"{name}/x": b""})
    error = refused(tmp_path)
    assert (error.message, error.place) == ("a folder stands in place of a file", name)


def test_a_folder_in_place_of_any_file(tmp_path: Path) -> None:
    container = open_container(make_pack(tmp_path))
    for read in (container.size, container.resolve, lambda n: container.span(n, 0, 1)):
        with pytest.raises(ContainerError, match="folder stands in place"):
            read("cache")


def test_git_is_left_out_and_said(tmp_path: Path) -> None:
    container = open_container(make_pack(tmp_path, {**FILES, ".git/lfs/objects/aa": b"x"}))
    assert container.files == tuple(sorted(FILES))
    assert container.folders == ("cache", "cache/\u00fcnder")
    assert ".git" in container.notes[0]


@posix
def test_other_kinds_of_files_are_refused_without_opening_them(tmp_path: Path) -> None:
    make_pack(tmp_path)
    os.mkfifo(tmp_path / "f")
    error = refused(tmp_path)
    assert (error.message, error.place) == ("a FIFO stands in place of a file", "f")
    (tmp_path / "f").unlink()
    (tmp_path / "f").symlink_to("/dev/null")
    assert "leaves the pack" in refused(tmp_path).message
    (tmp_path / "f").unlink()
    here = Path.cwd()
    os.chdir(tmp_path)  # the path of a socket may have 100 characters only
    try:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind("f")
    finally:
        os.chdir(here)
    assert "a socket stands" in refused(tmp_path).message


@posix
@pytest.mark.parametrize("name", ["a\nb", "\x1b[2Jx", "aux.json", "cache/NUL", "a\\b"])
def test_names_no_pack_may_have(tmp_path: Path, name: str) -> None:
    make_pack(tmp_path, {**FILES, name: b""})
    error = refused(tmp_path)
    assert error.place == name
    assert str(error).isprintable()


@posix
def test_a_name_that_is_not_utf8(tmp_path: Path) -> None:
    make_pack(tmp_path)
    (tmp_path / os.fsdecode(b"a\xff")).write_bytes(b"")
    error = refused(tmp_path)
    assert "UTF-8" in error.message
    str(error).encode("utf-8")


@posix
def test_names_that_differ_in_case_only(tmp_path: Path) -> None:
    make_pack(tmp_path, {**FILES, "Cache/x": b""})
    if len(list(tmp_path.iterdir())) != 5:
        pytest.skip("this disk takes the two names for one")
    error = refused(tmp_path)
    assert "case" in error.message
    assert error.found == "Cache and cache"


@posix
def test_names_that_windows_cannot_hold_are_reported(tmp_path: Path) -> None:
    # What Windows Explorer leaves beside a download on a Linux disk.
    name = "model.onnx:Zone.Identifier"
    container = open_container(make_pack(tmp_path, {**FILES, name: b""}))
    assert container.has(name)
    assert container.notes == (f"{name}: Windows can't hold this name: it has :",)


@posix
class TestLinks:
    def test_inside_the_folder_they_are_followed(self, tmp_path: Path) -> None:
        root = make_pack(tmp_path / "p")
        (root / "w.data").symlink_to("model.onnx.data")
        (root / "again").symlink_to("cache")
        (root / "chain").symlink_to(root / "w.data")
        container = open_container(root)
        assert container.read_bytes("chain", 10**6) == FILES["model.onnx.data"]
        assert container.resolve("w.data") == (root / "model.onnx.data").resolve()
        assert container.has("again/a meta.json")

    def test_the_folder_itself_may_be_one(self, tmp_path: Path) -> None:
        (tmp_path / "link").symlink_to(make_pack(tmp_path / "p"))
        container = open_container(tmp_path / "link")
        assert container.files == tuple(sorted(FILES))
        assert container.path == tmp_path / "link"

    @pytest.mark.parametrize("target", ["../secret", "{out}/secret", "../p-other", "..", "/"])
    def test_out_of_the_folder_they_are_refused(self, tmp_path: Path, target: str) -> None:
        root = make_pack(tmp_path / "p")
        (tmp_path / "secret").write_bytes(b"s")
        make_pack(tmp_path / "p-other")
        (root / "x").symlink_to(target.format(out=tmp_path))
        error = refused(root)
        assert (error.message, error.place) == ("the link leaves the pack", "x")

    def test_by_a_folder_that_leaves(self, tmp_path: Path) -> None:
        root = make_pack(tmp_path / "p")
        (tmp_path / "other").mkdir()
        (root / "cache" / "sub").symlink_to(tmp_path / "other")
        assert refused(root).place == "cache/sub"

    def test_that_lead_nowhere(self, tmp_path: Path) -> None:
        (make_pack(tmp_path) / "x").symlink_to("absent")
        error = refused(tmp_path)
        assert (error.message, error.found) == ("the link leads nowhere", "absent")

    def test_that_loop(self, tmp_path: Path) -> None:
        root = make_pack(tmp_path)
        (root / "cache" / "up").symlink_to("..")
        assert "back to a folder" in refused(root).message
        (root / "cache" / "up").unlink()
        (root / "x").symlink_to("x")
        assert refused(root).place == "x"

    def test_that_loop_over_two_folders(self, tmp_path: Path) -> None:
        root = make_pack(tmp_path, {**FILES, "a/f": b"", "b/f": b""})
        (root / "a" / "to_b").symlink_to("../b")
        (root / "b" / "to_a").symlink_to("../a")
        assert "back to a folder" in refused(root).message

    def test_a_tree_of_links_is_bounded(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(listing, "MAX_FILES", 1000)
        root = make_pack(tmp_path)
        for level in range(20):
            (root / f"level{level:02}").mkdir()
            for side in "lr":
                (root / f"level{level:02}" / side).symlink_to(f"../level{level + 1:02}")
        (root / "level20").mkdir()
        assert "too many files" in refused(root).message


def test_nesting_is_bounded(tmp_path: Path) -> None:
    make_pack(tmp_path, {**FILES, "d/" * listing.MAX_DEPTH + "f": b""})
    assert "nested too deep" in refused(tmp_path).message


@posix
class TestFoldersOfPacks:
    @pytest.fixture
    def above(self, tmp_path: Path) -> Path:
        """A repository with a pack for each device, and the model's own config above them."""
        for name in ("cpu/int4", "cuda", "directml", "npu"):
            make_pack(tmp_path / "repo" / name)
        (tmp_path / "repo" / "config.json").write_bytes(b"{}")
        return tmp_path / "repo"

    def test_one_of_them_is_to_be_passed(self, above: Path) -> None:
        error = refused(above)
        assert error.message.startswith("no pack, but a folder of packs")
        assert error.found == "cpu/int4, cuda, directml, npu"
        assert error.fix == f"Pass one of them, such as {above / 'cpu/int4'}"
        assert open_container(above / "cuda").has("genai_config.json")

    def test_many_of_them(self, above: Path) -> None:
        for name in ("p1", "p2", "p3"):
            make_pack(above / name)
        error = refused(above)
        assert error.found == "cpu/int4, cuda, directml, npu, p1 and 2 more"

    @pytest.mark.parametrize("name", ["genai_config.json", "model.onnx"])
    def test_a_pack_with_another_in_a_folder_is_one(self, name: str, above: Path) -> None:
        (above / name).write_bytes(FILES[name])
        assert open_container(above).has(f"cuda/{name}")

    def test_an_export_with_its_graph_in_a_folder_is_a_pack(self, tmp_path: Path) -> None:
        pack = make_pack(tmp_path / "p", {"onnx/model.onnx": b"x", "config.json": b"{}"})
        assert open_container(pack).has("onnx/model.onnx")


class TestSnapshots:
    def test_a_snapshot_of_a_hub_cache(self, tmp_path: Path) -> None:
        container = open_container(make_snapshot(tmp_path))
        assert container.format == "hub snapshot"
        assert container.files == tuple(sorted(FILES))
        for name, data in FILES.items():
            assert container.size(name) == len(data)
            assert container.read_bytes(name, 10**6) == data
        assert container.resolve("model.onnx").parent.name == "blobs"
        assert bytes(container.span("model.onnx.data", 5, 100)) == FILES["model.onnx.data"][5:105]

    def test_links_elsewhere_in_the_cache_are_refused(self, tmp_path: Path) -> None:
        snapshot = make_snapshot(tmp_path)
        (tmp_path / "models--some--pack" / "refs").write_bytes(b"x")
        (snapshot / "x").symlink_to("../../refs")
        assert refused(snapshot).place == "x"

    def test_blobs_that_are_a_link_lead_nowhere_allowed(self, tmp_path: Path) -> None:
        snapshot = make_snapshot(tmp_path / "a")
        repo = tmp_path / "a" / "models--some--pack"
        (repo / "blobs").rename(tmp_path / "elsewhere")
        (repo / "blobs").symlink_to(tmp_path / "elsewhere")
        assert refused(snapshot).message == "the link leaves the pack"

    def test_an_unfinished_download(self, tmp_path: Path) -> None:
        snapshot = make_snapshot(tmp_path)
        (snapshot / "model.onnx").resolve().unlink()
        error = refused(snapshot)
        assert (error.message, error.place) == ("the link leads nowhere", "model.onnx")
        assert "Download" in (error.fix or "")

    def test_a_whole_cache_is_not_a_snapshot(self, tmp_path: Path) -> None:
        error = refused(make_snapshot(tmp_path).parent.parent)
        assert "not one snapshot" in error.message
        assert error.found == "snapshots/0123abcd"


class TestSpans:
    def test_every_span_is_read_as_it_stands(self, tmp_path: Path) -> None:
        data = FILES["model.onnx.data"]
        container = open_container(make_pack(tmp_path))
        page = 4096
        for offset in (0, 1, page - 1, page, page + 1, len(data) - 1, len(data)):
            for length in (0, 1, 7, page, len(data) - offset):
                if offset + length <= len(data):
                    view = container.span("model.onnx.data", offset, length)
                    assert view.readonly
                    assert bytes(view) == data[offset : offset + length]

    def test_a_view_outlives_the_container(self, tmp_path: Path) -> None:
        view = open_container(make_pack(tmp_path)).span("model.onnx", 100, 5)
        assert bytes(view) == bytes([100, 101, 102, 103, 104])

    def test_a_span_survives_that_its_file_is_cut(self, tmp_path: Path) -> None:
        root = make_pack(tmp_path)
        view = open_container(root).span("model.onnx.data", 0, 70_000)
        os.truncate(root / "model.onnx.data", 1)
        assert bytes(view) == FILES["model.onnx.data"]

    @pytest.mark.parametrize(
        ("offset", "length"),
        [(0, 70_001), (70_000, 1), (-1, 1), (0, -1), (2**64, 1), (1, 2**63), (69_999, 2)],
    )
    def test_spans_outside_the_file_are_refused(
        self, tmp_path: Path, offset: int, length: int
    ) -> None:
        container = open_container(make_pack(tmp_path))
        with pytest.raises(ContainerError, match="not inside the file") as caught:
            container.span("model.onnx.data", offset, length)
        assert caught.value.place == "model.onnx.data"

    @given(offset=st.integers(-10, 70_100), length=st.integers(-10, 70_100))
    @settings(deadline=None, max_examples=100)
    def test_any_span(self, tmp_path_factory: pytest.TempPathFactory, offset: int, length: int):
        root = tmp_path_factory.getbasetemp() / "any_span"
        if not root.exists():
            make_pack(root)
        data = FILES["model.onnx.data"]
        container = open_container(root)
        if offset >= 0 and length >= 0 and offset + length <= len(data):
            assert container.span("model.onnx.data", offset, length) == data[offset:][:length]
        else:
            with pytest.raises(ContainerError):
                container.span("model.onnx.data", offset, length)


def test_a_file_beyond_its_limit_is_not_read(tmp_path: Path) -> None:
    container = open_container(make_pack(tmp_path))
    size = len(FILES["model.onnx"])
    assert container.read_bytes("model.onnx", size) == FILES["model.onnx"]
    with pytest.raises(ContainerError, match="too large"):
        container.read_bytes("model.onnx", size - 1)


def test_a_git_lfs_pointer_is_named(tmp_path: Path) -> None:
    container = open_container(make_pack(tmp_path, {**FILES, "model.onnx.data": LFS_POINTER}))
    for read in (
        lambda: container.read_bytes("model.onnx.data", 10**6),
        lambda: container.span("model.onnx.data", 0, 10**6),
        lambda: container.resolve("model.onnx.data"),
    ):
        with pytest.raises(ContainerError, match="git lfs pull") as caught:
            read()
        assert caught.value.place == "model.onnx.data"


class TestChanges:
    @pytest.mark.parametrize("change", ["content", "size", "replaced"])
    def test_a_changed_file_is_refused(self, tmp_path: Path, change: str) -> None:
        root = make_pack(tmp_path)
        container = open_container(root)
        path = root / "model.onnx"
        info = path.stat()
        if change == "content":
            path.write_bytes(bytes(info.st_size))
            os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns + 1_000_000_000))
        elif change == "size":
            path.write_bytes(b"x")
            os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
        else:
            if sys.platform == "win32":
                pytest.skip("inodes are not compared on Windows")
            path.rename(root.parent / "kept")
            path.write_bytes(bytes(info.st_size))
            os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))
        assert container.changed() == ("model.onnx",)
        for read in (
            lambda: container.read_bytes("model.onnx", 10**6),
            lambda: container.span("model.onnx", 0, 1),
        ):
            with pytest.raises(ContainerError, match="changed since"):
                read()

    def test_added_and_removed_files(self, tmp_path: Path) -> None:
        container = open_container(make_pack(tmp_path))
        (tmp_path / "new").write_bytes(b"")
        (tmp_path / "model.onnx.data").unlink()
        assert container.changed() == ("model.onnx.data", "new")
        with pytest.raises(ContainerError, match="missing"):
            container.read_bytes("model.onnx.data", 10**6)

    @posix
    @pytest.mark.parametrize("kind", ["fifo", "link"])
    def test_a_file_replaced_by_something_else(self, tmp_path: Path, kind: str) -> None:
        root = make_pack(tmp_path / "p")
        container = open_container(root)
        (root / "model.onnx").unlink()
        if kind == "fifo":
            os.mkfifo(root / "model.onnx")
        else:
            (tmp_path / "secret").write_bytes(FILES["model.onnx"])
            (root / "model.onnx").symlink_to("../secret")
        with pytest.raises(ContainerError):
            container.read_bytes("model.onnx", 10**6)


class TestLocations:
    def test_relative_to_the_folder_of_their_graph(self, tmp_path: Path) -> None:
        files = {**FILES, "sub/g.onnx": b"", "sub/w.data": b"", "sub/deep/w.data": b""}
        container = open_container(make_pack(tmp_path, files))
        assert container.safe_name("model.onnx.data", "model.onnx") == "model.onnx.data"
        assert container.safe_name("./model.onnx.data", "model.onnx") == "model.onnx.data"
        assert container.safe_name("w.data", "sub/g.onnx") == "sub/w.data"
        assert container.safe_name("deep//w.data", "sub/g.onnx") == "sub/deep/w.data"
        assert container.safe_name("sub/w.data", "genai_config.json") == "sub/w.data"

    @pytest.mark.parametrize(
        "location", ["/etc/passwd", "../p/w.data", "C:\\w", "a\\b", "\\\\s\\w", "", "w\x00"]
    )
    def test_unsafe_ones_are_refused_where_they_stand(self, tmp_path: Path, location: str) -> None:
        container = open_container(make_pack(tmp_path))
        with pytest.raises(ContainerError, match="the path of a file") as caught:
            container.safe_name(location, "model.onnx")
        assert caught.value.place == "model.onnx"
        assert str(caught.value).isprintable()

    def test_a_missing_one_names_both_files(self, tmp_path: Path) -> None:
        container = open_container(make_pack(tmp_path))
        with pytest.raises(ContainerError, match=r"missing; model.onnx names it") as caught:
            container.safe_name("weights.data", "model.onnx")
        assert caught.value.place == "weights.data"
        assert "Download" in (caught.value.fix or "")

    def test_one_that_differs_in_case(self, tmp_path: Path) -> None:
        container = open_container(make_pack(tmp_path))
        with pytest.raises(ContainerError, match="missing") as caught:
            container.safe_name("Model.ONNX.data", "model.onnx")
        assert caught.value.found == "model.onnx.data"


@posix
@pytest.mark.skipif(
    sys.platform != "win32" and os.geteuid() == 0, reason="root may read everything"
)
def test_an_unreadable_folder(tmp_path: Path) -> None:
    make_pack(tmp_path)
    (tmp_path / "cache").chmod(0)
    try:
        assert "permission is denied" in refused(tmp_path).message
    finally:
        (tmp_path / "cache").chmod(0o700)
