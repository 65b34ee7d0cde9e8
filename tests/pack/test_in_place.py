"""Changes in the pack's own files, and their taking back. Kills are in test_in_place_kills.py."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from little_packs import FILES, contents, edit_of, make_pack, make_snapshot, manifest_of

import packimport
from packimport.errors import ContainerError, DocumentError, PackimportError
from packimport.pack.additions import Addition, Change, Replacement
from packimport.pack.container import open_container
from packimport.pack.documents import json_text, validate
from packimport.pack.in_place import write_in_place
from packimport.pack.journal import FOLDER, UNFINISHED
from packimport.pack.lock import locked
from packimport.pack.manifest import MANIFEST, read_manifest
from packimport.pack.undo import recover, undo
from packimport.pack.verification import verify
from packimport.pack.writer import write_container

posix = pytest.mark.skipif(sys.platform == "win32", reason="needs links or modes of POSIX")
DATA = "model.onnx.data"


def span(offset: int = 5, new: bytes = b"new bytes", data: bytes = FILES[DATA]) -> Change:
    return edit_of(data, DATA, offset, new)


def patch(
    root: Path,
    changes: list[Change] | None = None,
    extra: dict[str, bytes] | None = None,
    inspect: Callable[[], None] = lambda: None,
) -> int:
    with locked(root) as real:
        return write_in_place(
            open_container(real),
            [span()] if changes is None else changes,
            extra or {},
            lambda files, _: manifest_of(files),
            inspect=inspect,
        )


def take_back(root: Path) -> str:
    with locked(root) as real:
        return undo(real)


def stamps(root: Path) -> dict[str, tuple[int, int, int]]:
    """Size, time and place on the disk of the folder and of every file."""
    found = {}
    for path in (root, *(p for p in root.rglob("*") if p.is_file())):
        info = path.lstat()
        found[path.relative_to(root).as_posix()] = (info.st_size, info.st_mtime_ns, info.st_ino)
    return found


@contextmanager
def refused(root: Path, match: str) -> Iterator[None]:
    """The block raises, and the pack is as it was, without any trace."""
    before = contents(root)
    with pytest.raises(PackimportError, match=match):
        yield
    assert contents(root) == before
    assert (root / FOLDER).exists() == any(name.startswith(FOLDER) for name in before)


class TestPatch:
    def test_only_the_spans_the_manifest_and_the_added_files(self, tmp_path: Path) -> None:
        root = make_pack(tmp_path / "p")
        before = stamps(root)
        written = patch(root, [span(), span(60_000)], {"config.json": b"{}"})
        found = contents(root)
        expected = bytearray(FILES[DATA])
        expected[5:14] = expected[60_000:60_009] = b"new bytes"
        journals = {name: found.pop(name) for name in list(found) if name.startswith(FOLDER)}
        manifest = found.pop(MANIFEST)
        assert found == {**FILES, DATA: bytes(expected), "config.json": b"{}"}
        assert sorted(journals) == [f"{FOLDER}/0001.bin", f"{FOLDER}/0001.json"]
        assert journals[f"{FOLDER}/0001.bin"] == FILES[DATA][5:14] + FILES[DATA][60_000:60_009]
        # The old bytes, the new ones, the three files: nothing else was written.
        assert written == 2 * 18 + len(manifest) + 2 + len(journals[f"{FOLDER}/0001.json"])
        after = stamps(root)
        assert after[DATA][2] == before[DATA][2]
        for name in FILES.keys() - {DATA}:
            assert after[name] == before[name]

    def test_the_journal_obeys_its_schema(self, tmp_path: Path) -> None:
        root = make_pack(tmp_path / "p")
        patch(root, extra={"config.json": b"{}"})
        journal = json.loads((root / FOLDER / "0001.json").read_bytes())
        validate(journal, "journal.schema.json", "0001.json")
        body = {key: value for key, value in journal.items() if key != "checksum"}
        text = json.dumps(body, indent=2, ensure_ascii=False) + "\n"
        assert journal["checksum"] == hashlib.sha256(text.encode()).hexdigest()

    def test_the_manifest_has_sizes_and_only_the_hashes_that_cost_nothing(
        self, tmp_path: Path
    ) -> None:
        root = make_pack(tmp_path / "p")
        patch(root, extra={"config.json": b"{}"})
        container = open_container(root)
        manifest = read_manifest(container)
        assert manifest is not None
        hashed = {file.name for file in manifest.files if file.sha256 is not None}
        assert hashed == {"config.json"}
        assert {file.name: file.size for file in manifest.files} == {
            name: container.size(name) for name in container.files if name != MANIFEST
        }
        found = verify(container, manifest)
        assert found.ok
        assert set(found.unhashed) == FILES.keys()

    def test_hashes_of_an_earlier_manifest_are_kept_for_what_is_not_changed(
        self, tmp_path: Path
    ) -> None:
        source = make_pack(tmp_path / "source")
        write_container(open_container(source), tmp_path / "p", [], {}, manifest_of)
        patch(tmp_path / "p")
        container = open_container(tmp_path / "p")
        manifest = read_manifest(container)
        assert manifest is not None
        assert [file.name for file in manifest.files if file.sha256 is None] == [DATA]
        assert verify(container, manifest).ok

    def test_a_written_copy_has_no_journals(self, tmp_path: Path) -> None:
        root = make_pack(tmp_path / "p")
        patch(root)
        write_container(open_container(root), tmp_path / "out", [], {}, manifest_of)
        assert not (tmp_path / "out" / FOLDER).exists()
        assert all(file.sha256 for file in read_manifest(open_container(tmp_path / "out")).files)  # type: ignore[union-attr]  # it was just written

    def test_other_bytes_than_those_that_were_checked(self, tmp_path: Path) -> None:
        root = make_pack(tmp_path / "p")
        with refused(root, "not those that were checked"):
            patch(root, [span(data=bytes(70_000))])

    def test_another_file_than_the_one_to_be_replaced(self, tmp_path: Path) -> None:
        root = make_pack(tmp_path / "p")
        other = Replacement(
            file="model.onnx",
            old_size=len(FILES["model.onnx"]),
            old_sha256="0" * 64,
            pieces=(b"x",),
            reason="a graph",
        )
        with refused(root, "changed since"):
            patch(root, [other])

    def test_a_result_that_is_not_right_is_taken_back(self, tmp_path: Path) -> None:
        root = make_pack(tmp_path / "p")
        before = stamps(root)

        def inspect() -> None:
            assert contents(root)[DATA][5:14] == b"new bytes"
            with pytest.raises(ContainerError, match="did not end"):
                open_container(root)
            open_container(root, unfinished=True)
            raise ContainerError("not right")

        with refused(root, "not right"):
            patch(root, extra={"config.json": b"{}"}, inspect=inspect)
        assert stamps(root) == before

    def test_a_file_that_changed_since_it_was_listed(self, tmp_path: Path) -> None:
        root = make_pack(tmp_path / "p")
        container = open_container(root)
        (root / DATA).write_bytes(FILES[DATA][:-1])
        with refused(root, "changed since"):
            write_in_place(
                container, [span()], {}, lambda files, _: manifest_of(files), inspect=lambda: None
            )


class TestLinks:
    @posix
    def test_a_hub_snapshot(self, tmp_path: Path) -> None:
        root = make_snapshot(tmp_path)
        with refused(root, "hub snapshot is not changed in place.*-o"):
            patch(root)

    @posix
    @pytest.mark.parametrize("name", [DATA, MANIFEST])
    def test_a_symlink(self, tmp_path: Path, name: str) -> None:
        manifest = json_text(manifest_of(()).to_dict()).encode()
        root = make_pack(tmp_path / "p", {**FILES, MANIFEST: manifest, "else": b""})
        (root / name).rename(root / "behind")
        (root / name).symlink_to("behind")
        with refused(root, "a link.*-o"):
            patch(root)

    @posix
    def test_links_that_are_not_written_stay(self, tmp_path: Path) -> None:
        root = make_pack(tmp_path / "p", {**FILES, "real": b"1", "named twice": b"2"})
        (root / "link").symlink_to("real")
        os.link(root / "named twice", tmp_path / "another name")
        patch(root)
        assert (root / "link").readlink() == Path("real")
        assert (tmp_path / "another name").samefile(root / "named twice")

    @posix
    @pytest.mark.parametrize("name", [DATA, MANIFEST])
    def test_a_hard_link(self, tmp_path: Path, name: str) -> None:
        manifest = json_text(manifest_of(()).to_dict()).encode()
        root = make_pack(tmp_path / "p", {**FILES, MANIFEST: manifest})
        os.link(root / name, tmp_path / "another name")
        with refused(root, "2 hard links"):
            patch(root)

    @posix
    def test_a_folder_that_is_a_link(self, tmp_path: Path) -> None:
        root = make_pack(tmp_path / "p", {**FILES, "real/x.data": bytes(100)})
        (root / "link").symlink_to("real")
        with refused(root, "reached by a link"):
            patch(root, [edit_of(bytes(100), "link/x.data", 0, b"abc")])

    def test_an_archive(self, tmp_path: Path) -> None:
        shutil.make_archive(str(tmp_path / "p"), "zip", make_pack(tmp_path / "p"))
        with (
            pytest.raises(ContainerError, match="a file is not changed in place"),
            locked(tmp_path / "p.zip"),
        ):
            pass


class TestUndo:
    def test_everything_is_as_it_was(self, tmp_path: Path) -> None:
        files = {**FILES, MANIFEST: json_text(manifest_of(()).to_dict()).encode()}
        root = make_pack(tmp_path / "p", files)
        before = stamps(root)
        changes = [
            span(),
            Addition(file=DATA, old_size=70_000, offset=70_100, new=b"more", reason="a table"),
            Replacement(
                file="model.onnx",
                old_size=len(FILES["model.onnx"]),
                old_sha256=hashlib.sha256(FILES["model.onnx"]).hexdigest(),
                pieces=(b"another ", b"graph"),
                reason="a graph",
            ),
        ]
        patch(root, changes, {"config.json": b"{}"})
        patched = contents(root)
        assert patched[DATA] == (
            FILES[DATA][:5] + b"new bytes" + FILES[DATA][14:] + bytes(100) + b"more"
        )
        assert patched["model.onnx"] == b"another graph"
        assert "4 files" in take_back(root)
        assert contents(root) == files
        assert stamps(root) == before

    def test_one_patch_at_a_time(self, tmp_path: Path) -> None:
        root = make_pack(tmp_path / "p")
        patch(root)
        once = contents(root)
        patch(root, [edit_of(once[DATA], DATA, 3, b"again")])
        assert contents(root)[DATA][:14] == FILES[DATA][:3] + b"again" + b"w bytes"[1:]
        take_back(root)
        assert contents(root) == once
        take_back(root)
        assert contents(root) == FILES

    def test_nothing_to_undo(self, tmp_path: Path) -> None:
        root = make_pack(tmp_path / "p")
        with refused(root, "nothing to undo"):
            take_back(root)

    @pytest.mark.parametrize(
        ("name", "data"),
        [
            (DATA, FILES[DATA]),
            ("config.json", b'{"edited": 1}'),
            (MANIFEST, b"{}"),
            (f"{FOLDER}/0001.bin", b"other one"),
        ],
    )
    def test_a_file_that_changed_since(self, tmp_path: Path, name: str, data: bytes) -> None:
        root = make_pack(tmp_path / "p")
        patch(root, extra={"config.json": b"{}"})
        (root / name).write_bytes(data)
        with refused(root, "changed since it was patched|saved bytes are damaged"):
            take_back(root)

    def test_a_journal_that_is_damaged(self, tmp_path: Path) -> None:
        root = make_pack(tmp_path / "p")
        patch(root)
        path = root / FOLDER / "0001.json"
        path.write_bytes(path.read_bytes().replace(b'"offset": 5', b'"offset": 6'))
        with refused(root, "damaged"):
            take_back(root)

    def test_a_later_journal_asks_for_a_later_packimport(self, tmp_path: Path) -> None:
        root = make_pack(tmp_path / "p")
        rewrite_journal(root, lambda journal: journal.update(schema_version=2))
        with refused(root, "Update packimport"):
            take_back(root)


def rewrite_journal(
    root: Path, change: Callable[[dict[str, Any]], object], name: str = "0001.json"
) -> None:
    """Patch, and change the journal as a stranger would, who can make checksums too."""
    patch(root, extra={"config.json": b"{}"})
    path = root / FOLDER / "0001.json"
    journal = json.loads(path.read_bytes())
    del journal["checksum"]
    change(journal)
    text = json_text(journal).encode()
    path.unlink()
    (root / FOLDER / name).write_text(
        json_text({**journal, "checksum": hashlib.sha256(text).hexdigest()}),
        encoding="utf-8",
        newline="\n",
    )


class TestJournalsOfStrangers:
    """A pack from a stranger may bring its own journal: it must not reach outside."""

    @pytest.mark.parametrize("name", ["0001.json", UNFINISHED])
    @pytest.mark.parametrize(
        "change",
        [
            lambda j: j["files"][0].update(name="../outside"),
            lambda j: j["files"][0].update(name="/etc/outside"),
            lambda j: j["files"][0].update(name=f"{FOLDER}/0001.bin"),
            lambda j: j["edited"][0].update(name="../outside"),
            lambda j: j["edited"][0].update(name="C:outside"),
            lambda j: j["spans"][0].update(file="../outside"),
            lambda j: j["spans"][0].update(offset=10**9),
            lambda j: j["edited"][0].update(size=10**9),
            lambda j: j["edited"].append(j["edited"][0]),
            lambda j: j.update(number=10**6),
            lambda j: j.update(spans=j["spans"] * 2),
        ],
    )
    def test_what_no_journal_may_say(
        self, tmp_path: Path, change: Callable[[dict[str, Any]], object], name: str
    ) -> None:
        root = make_pack(tmp_path / "p")
        (tmp_path / "outside").write_bytes(FILES[DATA])
        rewrite_journal(root, change, name)
        with refused(root, "."):
            take_back(root)
        assert (tmp_path / "outside").read_bytes() == FILES[DATA]

    @posix
    @pytest.mark.parametrize("name", [DATA, "config.json", f"{FOLDER}/0001.bin"])
    @pytest.mark.parametrize("make", [os.symlink, os.link])
    def test_links_in_place_of_files(
        self, tmp_path: Path, name: str, make: Callable[[Path, Path], None]
    ) -> None:
        root = make_pack(tmp_path / "p")
        patch(root, extra={"config.json": b"{}"})
        (root / name).rename(tmp_path / "outside")
        make(tmp_path / "outside", root / name)
        before = (tmp_path / "outside").read_bytes()
        for start in ("0001.json", UNFINISHED):
            if start == UNFINISHED:
                (root / FOLDER / "0001.json").rename(root / FOLDER / UNFINISHED)
            with pytest.raises(PackimportError):
                take_back(root)
            assert (tmp_path / "outside").read_bytes() == before

    @posix
    def test_a_link_in_place_of_the_folder(self, tmp_path: Path) -> None:
        root = make_pack(tmp_path / "p")
        patch(root)
        (root / FOLDER).rename(tmp_path / "elsewhere")
        (root / FOLDER).symlink_to(tmp_path / "elsewhere")
        before = contents(tmp_path / "elsewhere")
        for act in (take_back, patch, open_container):
            with pytest.raises(ContainerError, match="no folder of packimport's own"):
                act(root)
        assert contents(tmp_path / "elsewhere") == before

    def test_json_that_is_none(self, tmp_path: Path) -> None:
        root = make_pack(tmp_path / "p", {**FILES, f"{FOLDER}/{UNFINISHED}": b"[" * 100_000})
        with pytest.raises(DocumentError):
            take_back(root)


def other_process(script: str, *arguments: object, user: int | None = None) -> str:
    """What a script prints that runs in a process of its own, as another user where given."""
    places = [str(Path(packimport.__file__).parents[1]), str(Path(__file__).parent)]
    become = "" if user is None else f"import os\nos.setgid({user})\nos.setuid({user})\n"
    done = subprocess.run(
        [sys.executable, "-c", _IMPORTS + become + script, *map(str, arguments)],
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
    )
    assert not done.returncode, done.stderr
    return done.stdout


_IMPORTS = """
import sys
from pathlib import Path
import little_packs
from packimport.errors import ContainerError
import test_in_place as here
from packimport.pack import digests, unpacking
root = Path(sys.argv[1])
"""
_TRY = """
try:
    {act}
    print("done")
except ContainerError as error:
    print(error)
"""
PATCH = _TRY.format(act="here.patch(root, extra={'config.json': b'{}'})")
UNDO = _TRY.format(act="here.take_back(root)")

NOBODY = 65534
needs_root = pytest.mark.skipif(
    sys.platform == "win32" or os.getuid() != 0, reason="only root can become another user"
)


class TestDisksThatRefuse:
    def test_two_processes_at_once(self, tmp_path: Path) -> None:
        root = make_pack(tmp_path / "p")

        def inspect() -> None:
            for script in (PATCH, UNDO):
                assert "another packimport is at work on this pack" in other_process(script, root)

        patch(root, inspect=inspect)
        assert other_process(UNDO, root) == "done\n"
        assert contents(root) == FILES

    @posix
    @pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
    def test_being_asked_to_end(self, tmp_path: Path, name: str) -> None:
        """The pack is put back at once, and nothing is left for the next run."""
        root = make_pack(tmp_path / "p")
        before = stamps(root)
        # A signal just before a sleep does not end it.
        sleeps = "[__import__('time').sleep(0.1) for _ in range(600)]"
        wait = f"inspect=lambda: (print('ready', flush=True), {sleeps})"
        script = f"here.patch(root, extra={{'config.json': b'{{}}'}}, {wait})"
        places = [str(Path(packimport.__file__).parents[1]), str(Path(__file__).parent)]
        with subprocess.Popen(
            [sys.executable, "-c", _IMPORTS + script, str(root)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
        ) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            assert (root / FOLDER / UNFINISHED).exists()
            assert contents(root)[DATA] != FILES[DATA]
            number = getattr(signal, name)
            child.send_signal(number)
        assert child.returncode == (-number if name == "SIGINT" else 128 + number)
        assert stamps(root) == before
        assert contents(root) == FILES

    @needs_root
    @pytest.mark.parametrize("mode", ["folder", "file"])
    def test_what_may_not_be_written(self, reachable: Path, mode: str) -> None:
        root = reachable / "p"
        make_pack(root)
        for path in (root, *root.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
        (root if mode == "folder" else root / DATA).chmod(0o555 if mode == "folder" else 0o444)
        before = stamps(root)
        assert "permission is denied" in other_process(PATCH, root, user=NOBODY)
        assert stamps(root) == before
        assert contents(root) == FILES

    @needs_root
    def test_a_permission_that_is_lost_in_between(self, reachable: Path) -> None:
        root = reachable / "p"
        make_pack(root)
        for path in (root, *root.rglob("*")):
            os.chown(path, NOBODY, NOBODY)
        lost = "here.patch(root, inspect=lambda: (root.chmod(0o555), 1 / 0))"
        script = _TRY.format(act=lost)
        said = other_process(script, root, user=NOBODY)
        assert "run `packimport undo` on the pack" in said
        with pytest.raises(ContainerError, match="did not end"):
            open_container(root)
        assert "permission is denied" in other_process(UNDO, root, user=NOBODY)
        root.chmod(0o755)
        assert other_process(UNDO, root, user=NOBODY) == "done\n"
        assert contents(root) == FILES

    @pytest.mark.parametrize("room", [0, 4, 12, 40, 60, 64, 100])
    def test_a_full_disk(self, tmp_path: Path, room: int) -> None:
        """room: kB that are free; the patch needs about 80, its spans none."""
        with small_disk(tmp_path / "disk") as disk:
            root = make_pack(disk / "p")
            before = stamps(root)
            fill(disk / "filling", room << 10)
            new = bytes(60_000)
            try:
                patch(root, [span(new=new)])
            except ContainerError as error:
                assert "the disk is full" in str(error)
                assert stamps(root) == before
                assert contents(root) == FILES
            else:
                assert contents(root)[DATA][5:60_005] == new
            (disk / "filling").unlink()
            with locked(root) as real:
                assert recover(real) is None
            patched = (root / FOLDER).exists()
            assert patched == (room == 100)
            if patched:
                fill(disk / "filling", 0)
                take_back(root)
            assert contents(root) == FILES


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A folder that every user can get to: those of pytest are for one user."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder).resolve()


@contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A disk of 1 MB, in memory; skips the test where it can't be mounted."""
    folder.mkdir()
    mount = shutil.which("mount")
    command = [mount or "", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if mount is None or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("a small disk can't be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(path: Path, room: int) -> None:
    """Fill the disk of `path` but for `room` bytes."""
    with path.open("wb") as file:
        free = os.statvfs(path.parent)
        file.write(bytes(free.f_bavail * free.f_frsize - room))
