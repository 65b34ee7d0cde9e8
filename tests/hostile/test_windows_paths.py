"""Paths as Windows reads them, and files as Windows locks them, tried on any system.

Rules: https://learn.microsoft.com/windows/win32/fileio/naming-a-file, and `ntpath` of
the standard library, which is what Python's own calls use there.
"""

from __future__ import annotations

import ntpath
import subprocess
import sys
from pathlib import Path

import pytest
from archives import archive_of, files_of
from attempts import sound_pack
from hypothesis import example, given
from hypothesis import strategies as st

from packimport.errors import ContainerError
from packimport.pack import writer
from packimport.pack.container import open_container
from packimport.pack.names import collision, folded, location_refusal, refusal, unportable
from packimport.patching import patch

ROOT = "C:\\packs\\p"
PORTS = [f"{port}{number}" for port in ("COM", "LPT") for number in "123456789\u00b9\u00b2\u00b3"]
DEVICES = ["CON", "PRN", "AUX", "NUL", "CONIN$", "CONOUT$", *PORTS]
SPELLINGS = ["{}", "{}.txt", "{}.tar.gz", "{} ", "{}  .txt", "{}."]

LOCATIONS = [
    "C:\\x",
    "C:/x",
    "C:x",
    "c:",
    "\\x",
    "/x",
    "\\\\server\\share\\x",
    "//server/share/x",
    "\\\\?\\C:\\x",
    "//?/C:/x",
    "\\\\.\\COM1",
    "//./PhysicalDrive0",
    "\\\\?\\UNC\\server\\share",
    "\\??\\C:\\x",
    "..\\x",
    "a\\..\\..\\x",
    "a/..\\x",
    "../x",
    "a/../../x",
    "... /x",
    ".. /x",
    "..\u200b/../x",
    "x:stream",
    "x::$DATA",
    "x:stream:$INDEX_ALLOCATION",
    "a/x:y",
    "x.",
    "x ",
    "x. . ",
    "a./x",
    "a /x",
    "x?",
    "x*",
    "x<y",
    "x>y",
    "x|y",
    'x"y',
    "x\x00",
    "x\x1f",
    "",
]


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("device", DEVICES)
def test_devices_in_every_spelling(device: str, spelling: str) -> None:
    for name in (spelling.format(device), spelling.format(device.lower())):
        assert refusal(name) == "is a device name of Windows"
        for location in (name, f"a/{name}", f"{name}/x"):
            assert location_refusal(location) is not None


@pytest.mark.parametrize(
    "name", ["COM", "COM0", "COM10", "console", "nula", "auxiliary.json", "a.con"]
)
def test_names_that_only_look_like_devices(name: str) -> None:
    assert location_refusal(name) is None


@pytest.mark.parametrize("location", LOCATIONS)
def test_locations_that_windows_would_follow_elsewhere(location: str, tmp_path: Path) -> None:
    assert location_refusal(location) is not None
    container = open_container(sound_pack(tmp_path / "p"))
    with pytest.raises(ContainerError):
        container.safe_name(location, "model.onnx")


PARTS = st.sampled_from(
    [
        "..",
        ".",
        "",
        "a",
        "C:",
        "con",
        "\\",
        "\\\\",
        "?",
        "x.",
        " ",
        "x:y",
        "nul.txt",
        "b",
        "~",
        "%x%",
    ]
)


@given(st.one_of(st.text(max_size=20), st.lists(PARTS, max_size=5).map("/".join)))
@example("a/b")
def test_an_allowed_location_stays_below_its_folder(location: str) -> None:
    if location_refusal(location) is not None:
        return
    joined = ntpath.normpath(ntpath.join(ROOT, location))
    assert joined.lower().startswith(ROOT.lower() + "\\")
    assert ntpath.splitdrive(joined)[0] == "C:"
    assert ":" not in joined[2:]
    for part in joined[len(ROOT) + 1 :].split("\\"):
        assert unportable(part) is None
        # Windows drops these at the end of a name, so that two names would be one file.
        assert part == part.rstrip(". ")
        assert part.split(".")[0].rstrip().upper() not in DEVICES


@given(st.text(max_size=8), st.text(max_size=8))
@example("MODEL.ONNX", "model.onnx")
@example("\u00c9", "e\u0301")
@example("\u212a", "k")  # the sign of kelvin
def test_names_that_windows_holds_to_be_one(first: str, second: str) -> None:
    same = first != second and folded(first) == folded(second)
    assert (collision([first, second]) is not None) == same
    if first != second and ntpath.normcase(first) == ntpath.normcase(second):
        assert first.replace("/", "\\").lower() == second.replace("/", "\\").lower()


class Refused(PermissionError):
    """What Windows raises while another program has a file open."""

    def __init__(self, winerror: int) -> None:
        super().__init__(13, "The process cannot access the file")
        self.winerror = winerror


def refusing(times: int, winerror: int, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let the first renames of a folder fail; the list grows with each of them."""
    real, tried = Path.rename, []

    def rename(self: Path, target: Path) -> Path:
        tried.append(1)
        if len(tried) <= times:
            raise Refused(winerror)
        return real(self, target)

    monkeypatch.setattr(Path, "rename", rename)
    monkeypatch.setattr(writer, "_RENAME_SECONDS", 0)
    return tried


@pytest.mark.parametrize("winerror", [5, 32])
@pytest.mark.parametrize("form", ["folder", "archive"])
def test_a_scanner_that_holds_the_new_files_is_waited_for(
    form: str, winerror: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = sound_pack(tmp_path / "p")
    if form == "archive":
        pack = archive_of(files_of(pack), tmp_path / "p.zip")
    tried = refusing(3, winerror, monkeypatch)
    patch(pack, tmp_path / "out")
    assert len(tried) == 4
    assert (tmp_path / "out" / "packimport.json").exists()


@pytest.mark.parametrize("winerror", [5, 32, 17])
def test_a_file_that_stays_locked_leaves_no_output(
    winerror: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pack = sound_pack(tmp_path / "p")
    tried = refusing(10**6, winerror, monkeypatch)
    with pytest.raises(ContainerError, match="permission is denied"):
        patch(pack, tmp_path / "out")
    # 17, another device, does not go away by waiting.
    assert len(tried) == (1 if winerror == 17 else writer._RENAME_TRIES)
    assert [path.name for path in tmp_path.iterdir()] == ["p"]


BARE = """
import os, signal, sys
for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "mkfifo"):
    vars(os).pop(name, None)
for name in ("SIGHUP", "SIGKILL", "SIGALRM"):
    vars(signal).pop(name, None)
sys.modules["resource"] = None
from packimport.patching import patch
print(patch(sys.argv[1], sys.argv[2]).after.verdict)
"""


@pytest.mark.parametrize("form", ["folder", "archive"])
def test_without_what_only_posix_has(form: str, tmp_path: Path) -> None:
    pack = sound_pack(tmp_path / "p")
    if form == "archive":
        pack = archive_of(files_of(pack), tmp_path / "p.tar.gz")
    command = [sys.executable, "-c", BARE, str(pack), str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "ok"), done.stderr


def test_a_path_longer_than_windows_likes(tmp_path: Path) -> None:
    """260 characters are the limit of old calls; Python's own reach further where enabled."""
    deep = tmp_path / ("d" * 100) / ("e" * 100) / ("\u00fc f" * 20)
    deep.mkdir(parents=True)
    pack = sound_pack(deep / "p")
    assert len(str(pack)) > 260
    patch(pack, deep / "out")
    files = {f"{'n' * 200}/{name}": data for name, data in files_of(pack).items()}
    files[f"{'n' * 200}/{'o' * 200}/p"] = b""
    patch(archive_of(files, deep / "p.zip"), deep / "from archive")
    assert (deep / "from archive" / ("o" * 200) / "p").exists()
