"""Tiny packs for the tests of the disk layer: their graphs are arbitrary bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from packimport.pack.edits import Edit
from packimport.pack.manifest import FileRecord, Manifest

FILES: Mapping[str, bytes] = {
    "genai_config.json": b"{}\n",
    "model.onnx": bytes(range(256)) * 40,
    "model.onnx.data": bytes(i * i % 251 for i in range(70_000)),
    "cache/a meta.json": b"[1]",
    "cache/\u00fcnder/empty.bin": b"",
}


def make_pack(folder: Path, files: Mapping[str, bytes] = FILES) -> Path:
    """Write `files` under `folder`."""
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def make_snapshot(cache: Path, files: Mapping[str, bytes] = FILES) -> Path:
    """A snapshot as a hub cache lays it out: every file a relative link into blobs/."""
    repo = cache / "models--some--pack"
    snapshot = repo / "snapshots" / "0123abcd"
    for name, data in files.items():
        blob = repo / "blobs" / hashlib.sha256(data).hexdigest()
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(data)
        link = snapshot / name
        link.parent.mkdir(parents=True, exist_ok=True)
        up = "../" * (2 + name.count("/"))
        link.symlink_to(f"{up}blobs/{blob.name}")
    return snapshot


def contents(folder: Path) -> dict[str, bytes]:
    """Every file under `folder`, by name."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def names_in(folder: Path) -> list[str]:
    """What lies in `folder`, hidden or not, sorted."""
    return sorted(path.name for path in folder.iterdir())


def edit_of(data: bytes, file: str, offset: int, new: bytes, reason: str = "a table") -> Edit:
    """An Edit made for the bytes of `data`."""
    old = data[offset : offset + len(new)]
    return Edit(
        file=file,
        offset=offset,
        new=new,
        old_sha256=hashlib.sha256(old).hexdigest(),
        reason=reason,
    )


def manifest_of(files: tuple[FileRecord, ...]) -> Manifest:
    """A manifest that holds `files` and little else."""
    return Manifest(
        tool_version="0.0.0",
        container_format="folder",
        source={"path": "a pack", "format": "folder"},
        files=files,
        edits=(),
        semantics=None,
        declaration=None,
    )
