"""Archives made to write elsewhere, to fill the disk or the memory, or to be read in two ways."""

from __future__ import annotations

import gzip
import io
import os
import struct
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from archives import FORMATS, archive_of, compressed, files_of, tar_bytes, tar_with, zstd
from attempts import refused, sound_pack

from packimport.pack import unpacking, zip_file
from packimport.pack.listing import MAX_FILES

NAMES = {
    "parent": "../evil",
    "parent in the middle": "a/../../evil",
    "absolute": "/var/evil",
    "absolute twice": "//evil",
    "drive": "C:/evil",
    "drive, relative": "C:evil",
    "backslash": "a\\evil",
    "backslash parent": "..\\evil",
    "UNC": "\\\\server\\share\\evil",
    "alternate stream": "model.onnx:evil",
    "device": "NUL",
    "device with a suffix": "con.json",
    "device as a folder": "aux/x",
    "superscript port": "COM\u00b9",
    "trailing dot": "evil.",
    "trailing space": "evil ",
    "line end": "a\nb",
    "escape": "\x1b[2Jx",
    "question mark": "evil?",
    "long": "x" * 2000,
    "deep": "d/" * 100 + "x",
    "case": "MODEL.onnx",
    "case of a folder": "Folder/x",
    "composition": "cafe\u0301",
    "a file as a folder": "model.onnx/x",
}


@pytest.mark.parametrize("form", ["zip", "tar.gz"])
@pytest.mark.parametrize("case", NAMES)
def test_names_that_are_not_unpacked(case: str, form: str, tmp_path: Path) -> None:
    files = files_of(sound_pack(tmp_path / "sound"))
    files |= {"folder/y": b"", "caf\u00e9": b"", NAMES[case]: b"evil"}
    (tmp_path / "in").mkdir()
    refused(archive_of(files, tmp_path / "in" / f"p.{form}"))


def test_a_name_with_a_null_in_a_zip(tmp_path: Path) -> None:
    """zipfile cuts such a name, other readers may not."""
    (tmp_path / "in").mkdir()
    path = archive_of({"model.onnx": b"x", "evilX.txt": b""}, tmp_path / "in" / "p.zip")
    path.write_bytes(path.read_bytes().replace(b"evilX", b"evil\0"))
    refused(path)


def member(kind: bytes, name: str = "evil", **fields: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    for key, value in fields.items():
        setattr(info, key, value)
    return info


MEMBERS = {
    "a link out": member(tarfile.SYMTYPE, linkname="/etc/passwd"),
    "a link within": member(tarfile.SYMTYPE, linkname="model.onnx"),
    "a hard link": member(tarfile.LNKTYPE, linkname="/etc/passwd"),
    "a character device": member(tarfile.CHRTYPE, devmajor=1, devminor=5),
    "a block device": member(tarfile.BLKTYPE, devmajor=8, devminor=0),
    "a FIFO": member(tarfile.FIFOTYPE),
    "a sparse file": member(tarfile.GNUTYPE_SPARSE),
    "a contiguous file": member(tarfile.CONTTYPE),
    "a volume": member(b"V"),
    "an unknown type": member(b"Z"),
    "a pax sparse file": member(
        tarfile.REGTYPE, pax_headers={"GNU.sparse.major": "1", "GNU.sparse.realsize": "9" * 15}
    ),
    "a size of its own": member(tarfile.REGTYPE, pax_headers={"size": "99999999999999"}),
    "a size that is no number": member(tarfile.REGTYPE, pax_headers={"size": "0x10"}),
    "a negative size": member(tarfile.REGTYPE, pax_headers={"size": "-512"}),
    "a path of its own": member(tarfile.REGTYPE, pax_headers={"path": "../../evil"}),
    "a very long path": member(tarfile.REGTYPE, pax_headers={"path": "x" * 2_000_000}),
}


@pytest.mark.parametrize("case", MEMBERS)
def test_members_of_a_tar_that_are_no_files(case: str, tmp_path: Path) -> None:
    good = member(tarfile.REGTYPE, "model.onnx")
    (tmp_path / "in").mkdir()
    refused(compressed(tar_with(good, MEMBERS[case]), tmp_path / "in" / "p.tar"))


def test_a_link_that_a_later_member_goes_through(tmp_path: Path) -> None:
    link = member(tarfile.SYMTYPE, "a", linkname="/var")
    (tmp_path / "in").mkdir()
    refused(
        compressed(tar_with(link, member(tarfile.REGTYPE, "a/evil")), tmp_path / "in" / "p.tar")
    )


def zip_member(change: Callable[[zipfile.ZipInfo], None], data: bytes = b"x") -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("model.onnx", b"graph")
        info = zipfile.ZipInfo("evil")
        change(info)
        archive.writestr(info, data)
    return out.getvalue()


def mode(bits: int) -> Callable[[zipfile.ZipInfo], None]:
    def change(info: zipfile.ZipInfo) -> None:
        info.create_system, info.external_attr = 3, bits << 16

    return change


def patched(data: bytes, old: bytes, shift: int, new: bytes) -> bytes:
    """`new` at `shift` bytes behind the last place of `old`."""
    at = data.rindex(old) + shift
    return data[:at] + new + data[at + len(new) :]


def all_patched(data: bytes, shifts: dict[bytes, int], new: bytes) -> bytes:
    """`new` in every record that begins with a signature, at its shift."""
    for signature, shift in shifts.items():
        at = data.find(signature)
        while at >= 0:
            data = data[: at + shift] + new + data[at + shift + len(new) :]
            at = data.find(signature, at + 4)
    return data


LOCAL, CENTRAL, END = b"PK\3\4", b"PK\1\2", b"PK\5\6"
PLAIN = zip_member(lambda info: None)
ZIPS = {
    "a link": zip_member(mode(0o120777), b"/etc/passwd"),
    "a FIFO": zip_member(mode(0o010644)),
    "a device": zip_member(mode(0o020644)),
    "a socket": zip_member(mode(0o140644)),
    "a folder that is a file": zip_member(mode(0o040755)),
    "encrypted": all_patched(PLAIN, {LOCAL: 6, CENTRAL: 8}, b"\1\0"),
    "strongly encrypted": all_patched(PLAIN, {LOCAL: 6, CENTRAL: 8}, b"\x41\0"),
    "packed by bzip2": all_patched(PLAIN, {LOCAL: 8, CENTRAL: 10}, struct.pack("<H", 12)),
    "packed by an unknown method": all_patched(PLAIN, {LOCAL: 8, CENTRAL: 10}, b"\x63\0"),
    "on another disk": patched(PLAIN, CENTRAL, 34, b"\1\0"),
    "the last of two disks": patched(PLAIN, END, 4, b"\1\0"),
    "two names for one member": patched(PLAIN, CENTRAL, 46, b"good"),
    "a wrong checksum": all_patched(PLAIN, {CENTRAL: 16}, b"\0\0\0\0"),
    "a size too small": patched(PLAIN, CENTRAL, 24, b"\0\0\0\0"),
    "a size too large": patched(PLAIN, CENTRAL, 24, b"\xff\xff\xff\x7f"),
    "a packed size too large": patched(PLAIN, CENTRAL, 20, b"\xff\xff\xff\x7f"),
    "an offset past the end": patched(PLAIN, CENTRAL, 42, b"\xff\xff\xff\x7f"),
    "an offset into the middle": patched(PLAIN, CENTRAL, 42, b"\x07\0\0\0"),
    "a directory past the end": patched(PLAIN, END, 16, b"\xff\xff\xff\x7f"),
    "a directory of 4 GB": patched(PLAIN, END, 12, b"\xff\xff\xff\xfe"),
    "bytes behind its end": PLAIN + b"evil",
    "a second archive behind it": PLAIN + PLAIN,
    "cut short": PLAIN[:-10],
    "no directory": PLAIN[: PLAIN.index(CENTRAL)],
    "only a signature": b"PK\3\4",
    "empty": b"PK\5\6" + bytes(18),
    "a spanned one": b"PK\7\x08" + PLAIN,
    "zeros": b"PK\3\4" + bytes(5000),
}


@pytest.mark.parametrize("case", ZIPS)
def test_zips_that_are_not_unpacked(case: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "p.zip"
    path.write_bytes(ZIPS[case])
    refused(path)


TAR = tar_bytes({"model.onnx": b"graph" * 1000})
CUT = {
    "a tar": TAR[:700],
    "a tar without an end": TAR[: 512 * 12],
    "a tar with a wrong checksum": TAR[:148] + b"0000000" + TAR[155:],
    "a tar and more": TAR + b"evil",
    "a second tar": TAR + TAR,
    "a gzip": gzip.compress(TAR)[:-20],
    "a gzip with a wrong checksum": gzip.compress(TAR)[:-8] + bytes(8),
    "a gzip of no tar": gzip.compress(b"hello"),
    "a gzip of nothing": gzip.compress(b""),
    "a gzip of garbage": b"\x1f\x8b" + bytes(range(256)),
    "a zstandard": zstd(TAR)[:-20],
    "a zstandard of no tar": zstd(b"hello"),
    "a zstandard of garbage": b"\x28\xb5\x2f\xfd" + bytes(range(256)),
    "a gzip of a gzip": gzip.compress(gzip.compress(TAR)),
    "pax without a length": tar_with(member(tarfile.XHDTYPE, size=600)),
    "a name of a gigabyte": member(b"L", size=2**30).tobuf(tarfile.GNU_FORMAT),
    "a member of an exabyte": member(tarfile.REGTYPE, size=2**60).tobuf(tarfile.GNU_FORMAT),
    "a member of a negative size": member(tarfile.REGTYPE, size=-512).tobuf(tarfile.GNU_FORMAT),
}


@pytest.mark.parametrize("case", CUT)
def test_archives_that_are_damaged(case: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "p.tar"
    path.write_bytes(CUT[case])
    refused(path)


def test_a_zip_bomb(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "p.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("model.onnx", b"x")
        for name in "abc":
            archive.writestr(name, bytes(100 * 2**20))
    assert path.stat().st_size < 500_000
    assert "unpacks to more" in refused(path)["message"]


@pytest.mark.parametrize("form", ["tar.gz", "tar.zst"])
def test_a_bomb_in_a_tar(form: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    data = tar_with(member(tarfile.REGTYPE, "model.onnx", size=300 * 2**20))
    path = compressed(data, tmp_path / "in" / f"p.{form}")
    assert "unpacks to more" in refused(path)["message"]


def test_a_bomb_of_headers(tmp_path: Path) -> None:
    """Nothing is ever written, the stream goes on and on."""
    header = member(tarfile.XHDTYPE, size=512).tobuf(tarfile.USTAR_FORMAT)
    record = b"512 x=" + b"y" * 505 + b"\n"
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "p.tar.gz"
    path.write_bytes(gzip.compress((header + record) * 300_000, 1))
    assert "in front of a member" in refused(path)["found"]


def test_a_bomb_of_folders(tmp_path: Path) -> None:
    header = member(tarfile.DIRTYPE, "folder").tobuf(tarfile.USTAR_FORMAT)
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "p.tar.gz"
    path.write_bytes(gzip.compress(header * 500_000, 1))
    assert "too many files" in refused(path)["message"]


def test_members_that_share_their_bytes(tmp_path: Path) -> None:
    """As in the bombs of David Fifield: many entries of the directory, one set of bytes."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("aa", bytes(2**20))
    data = out.getvalue()
    at, end = data.index(CENTRAL), data.index(END)
    record = data[at:end]
    records = b"".join(record[:46] + f"{i:02}".encode() for i in range(50))
    tail = struct.pack("<4s4H2LH", END, 0, 0, 50, 50, len(records), at, 0)
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "p.zip"
    path.write_bytes(data[:at] + records + tail)
    assert "share bytes" in refused(path)["found"]


def test_an_archive_in_an_archive_is_not_unpacked(tmp_path: Path) -> None:
    """So a quine, an archive that holds itself, is unpacked once."""
    inner = archive_of({"model.onnx": b"x"}, tmp_path / "inner.zip").read_bytes()
    (tmp_path / "in").mkdir()
    error = refused(archive_of({"p.zip": inner}, tmp_path / "in" / "p.zip"))
    assert "neither genai_config.json" in error["message"]


@pytest.mark.parametrize("form", ["zip", "tar"])
def test_too_many_files(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_FILES == 100_000
    for module in (unpacking, zip_file):
        monkeypatch.setattr(module, "MAX_FILES", 50)
    (tmp_path / "in").mkdir()
    files = {f"d/{number}": b"" for number in range(60)}
    error = refused(archive_of(files, tmp_path / "in" / f"p.{form}"))
    assert "too many files" in error["message"]


def test_a_directory_beyond_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zip_file, "MAX_DIRECTORY", 2000)
    (tmp_path / "in").mkdir()
    files = {f"{number:0100}": b"" for number in range(60)}
    error = refused(archive_of(files, tmp_path / "in" / "p.zip"))
    assert "directory of more than" in error["found"]


@pytest.mark.parametrize("form", FORMATS)
def test_a_name_that_stands_twice(form: str, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / f"p.{form}"
    if form == "zip":
        with zipfile.ZipFile(path, "w") as archive, pytest.warns(UserWarning, match="Duplicate"):
            archive.writestr("model.onnx", b"one")
            archive.writestr("model.onnx", b"two")
    else:
        twice = [member(tarfile.REGTYPE, "model.onnx") for _ in range(2)]
        compressed(tar_with(*twice), path)
    assert "stands twice" in refused(path)["message"]


@pytest.mark.skipif(os.name != "posix", reason="POSIX only")
def test_a_fifo_that_is_named_like_an_archive(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    os.mkfifo(tmp_path / "in" / "p.zip")
    refused(tmp_path / "in" / "p.zip")
