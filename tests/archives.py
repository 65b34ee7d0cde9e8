"""Archives of packs, made by the standard library and zstandard."""

from __future__ import annotations

import importlib
import io
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

FORMATS = ("zip", "tar", "tar.gz", "tar.zst")


def files_of(folder: Path, top: str = "") -> dict[str, bytes]:
    """Every file under `folder` by name, below the folder `top` where one is given."""
    return {
        f"{top}{path.relative_to(folder).as_posix()}": path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def archive_of(files: Mapping[str, bytes], path: Path) -> Path:
    """An archive of `files` in the format that the name of `path` says."""
    if path.name.endswith(".zip"):
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in files.items():
                archive.writestr(name, data)
        return path
    return compressed(tar_bytes(files), path)


def compressed(data: bytes, path: Path) -> Path:
    """The bytes of a tar at `path`, compressed as its name says."""
    if path.name.endswith(".gz"):
        data = importlib.import_module("gzip").compress(data, 1)
    elif path.name.endswith(".zst"):
        data = zstd(data)
    path.write_bytes(data)
    return path


def zstd(data: bytes) -> bytes:
    """One frame of zstandard, without its size, as `tar | zstd` makes it."""
    try:
        compress = importlib.import_module("compression.zstd").compress
    except ImportError:
        context = importlib.import_module("zstandard").ZstdCompressor(write_content_size=False)
        compress = context.compress
    return bytes(compress(data))


def tar_bytes(files: Mapping[str, bytes], form: int = tarfile.PAX_FORMAT) -> bytes:
    """A tar of `files`."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return out.getvalue()


def tar_with(*members: tarfile.TarInfo, form: int = tarfile.PAX_FORMAT) -> bytes:
    """A tar of bare headers; each member has as many zeros as its size says."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for info in members:
            archive.addfile(info, io.BytesIO(bytes(info.size)))
    return out.getvalue()
