from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
from little_packs import FILES, contents, edit_of, make_pack, manifest_of

from packimport.errors import ContainerError
from packimport.pack.additions import Addition, Change, Replacement
from packimport.pack.container import open_container
from packimport.pack.digests import CHUNK
from packimport.pack.file_view import FileView, Stretch
from packimport.pack.manifest import Manifest
from packimport.pack.writer import write_container

DATA, GRAPH = "model.onnx.data", "model.onnx"
SIZE = len(FILES[DATA])


def addition(offset: int, new: bytes, old_size: int = SIZE) -> Addition:
    return Addition(file=DATA, old_size=old_size, offset=offset, new=new, reason="a table")


def replacement(*pieces: bytes | Stretch, **settings: object) -> Replacement:
    made = {
        "file": GRAPH,
        "old_size": len(FILES[GRAPH]),
        "old_sha256": hashlib.sha256(FILES[GRAPH]).hexdigest(),
        "pieces": pieces,
        "reason": "a node",
        **settings,
    }
    return Replacement(**made)  # type: ignore[arg-type]  # merged above


def write(root: Path, out: Path, *changes: Change) -> Manifest:
    return write_container(open_container(root), out, changes, {}, manifest_of)


def refused(tmp_path: Path, *changes: Change) -> str:
    root = make_pack(tmp_path / "p")
    before = contents(root)
    with pytest.raises(ContainerError) as caught:
        write(root, tmp_path / "out", *changes)
    assert [path.name for path in tmp_path.iterdir()] == ["p"]
    assert contents(root) == before
    return str(caught.value)


@pytest.mark.parametrize("length", [1, 4096, 3 * CHUNK + 5])
def test_bytes_are_added_behind_the_end(tmp_path: Path, length: int) -> None:
    root = make_pack(tmp_path / "p")
    first, second = b"\x01" * length, b"\x02" * 10
    start = -(-SIZE // 64) * 64
    later = start + length + 7
    manifest = write(
        root, tmp_path / "out", addition(later, second), addition(start, first),
        edit_of(FILES[DATA], DATA, 5, b"\xff" * 9),
    )  # fmt: skip
    old = bytearray(FILES[DATA])
    old[5:14] = b"\xff" * 9
    expected = bytes(old) + bytes(start - SIZE) + first + bytes(7) + second
    assert (tmp_path / "out" / DATA).read_bytes() == expected
    (record,) = [file for file in manifest.files if file.name == DATA]
    assert record.size == len(expected)
    assert record.sha256 == hashlib.sha256(expected).hexdigest()
    assert {name: data for name, data in contents(root).items() if name in FILES} == FILES


def test_a_file_is_made_anew_from_pieces_of_the_old_one(tmp_path: Path) -> None:
    root = make_pack(tmp_path / "p")
    view = FileView(open_container(root), GRAPH)
    old = FILES[GRAPH]
    change = replacement(Stretch(view, 0, 3), b"new", Stretch(view, 4, len(old)))
    manifest = write(root, tmp_path / "out", change)
    expected = old[:3] + b"new" + old[4:]
    assert (tmp_path / "out" / GRAPH).read_bytes() == expected
    (record,) = [file for file in manifest.files if file.name == GRAPH]
    assert (record.size, record.sha256) == (
        len(expected),
        hashlib.sha256(expected).hexdigest(),
    )


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ([addition(SIZE - 1, b"x")], "not behind the end"),
        ([addition(SIZE, b"")], "empty"),
        ([addition(SIZE, b"xyz"), addition(SIZE + 2, b"x")], "not behind the end"),
        ([addition(SIZE, b"x", old_size=SIZE - 1)], "another size"),
        ([replacement(b"x", file="none.onnx")], "the pack lacks"),
        ([replacement(b"x", old_size=1)], "another size"),
        ([replacement(b"x", old_sha256="0" * 64)], "not the one that was checked"),
        ([replacement(b"x"), replacement(b"y")], "changed in two ways"),
        ([replacement(b"x"), edit_of(FILES[GRAPH], GRAPH, 0, b"\xfe")], "changed in two ways"),
        (
            [
                replacement(
                    b"x",
                    file=DATA,
                    old_size=SIZE,
                    old_sha256=hashlib.sha256(FILES[DATA]).hexdigest(),
                ),
                addition(SIZE, b"x"),
            ],
            "changed in two ways",
        ),
    ],
)
def test_what_is_refused(tmp_path: Path, changes: list[Change], why: str) -> None:
    assert why in refused(tmp_path, *changes)
