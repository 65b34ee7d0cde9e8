"""Text file: UTF-8, as it is."""

from __future__ import annotations

from pathlib import Path

from packimport.errors import DocumentError


def read_text(path: Path) -> str:
    """The text of a UTF-8 file, line ends as they are, without a byte order mark."""
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise DocumentError(f"can't be read: {error.strerror}", place=str(path)) from error
    except UnicodeDecodeError as error:
        raise DocumentError(
            f"not UTF-8 at byte {error.start}", place=str(path), fix="Save the file as UTF-8."
        ) from error
