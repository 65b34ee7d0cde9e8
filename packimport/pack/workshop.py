"""Workshop: a hidden folder beside the output, in which a container is made.

Layout: `.packimport-XXXXXXXX/` with `lock`, which its owner holds locked for as
long as it lives, and `pack/`, which is renamed to the output when it is
complete. So the output appears whole or not at all. A killed run leaves its
workshop behind, with a lock that nobody holds: the next run that writes into
the same parent folder removes it.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from packimport.pack.durable import make_removable
from packimport.pack.lock import HELD, take

PREFIX = ".packimport-"
_LOCK = "lock"
_PACK = "pack"


@contextmanager
def workshop(parent: Path) -> Iterator[Path]:
    """A path for a new folder on the disk of `parent`, for the time of the block.

    What still lies there when the block ends is removed. Raises OSError where
    `parent` can't be written to.
    """
    _remove_leftovers(parent)
    folder, lock = _create(parent)
    try:
        yield folder / _PACK
    finally:
        _remove(folder, lock)


def _create(parent: Path) -> tuple[Path, int]:
    """A new workshop and the descriptor of its lock."""
    while True:
        folder = _new_folder(parent)
        try:
            lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        except FileNotFoundError:
            # Another run took the new folder, not locked yet, for a left-over.
            continue
        except OSError:
            folder.rmdir()
            raise
        if _is_owner(folder, lock):
            return folder, lock
        os.close(lock)


def _new_folder(parent: Path) -> Path:
    if sys.platform == "win32":
        # There mkdtemp lets nobody else in, which the output would inherit and keep.
        folder = parent / f"{PREFIX}{secrets.token_hex(8)}"
        folder.mkdir()
    else:
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=parent))
    return folder


def _is_owner(folder: Path, lock: int) -> bool:
    try:
        take(lock)
    except HELD:
        return False
    except OSError:
        # This disk knows no locks: nobody else can take this one, either.
        return True
    try:
        return sys.platform == "win32" or os.path.samestat((folder / _LOCK).stat(), os.fstat(lock))
    except FileNotFoundError:
        return False


def _remove_leftovers(parent: Path) -> None:
    """Remove the workshops in `parent` whose owners are dead; what can't be removed stays."""
    with suppress(OSError), os.scandir(parent) as found:
        folders = [
            Path(entry.path)
            for entry in found
            if entry.name.startswith(PREFIX)
            and entry.is_dir(follow_symlinks=False)
            and _is_mine(entry.stat(follow_symlinks=False))
        ]
        for folder in folders:
            with suppress(OSError):
                _remove_leftover(folder)


def _is_mine(info: os.stat_result) -> bool:
    return sys.platform == "win32" or info.st_uid == os.getuid()


def _remove_leftover(folder: Path) -> None:
    """Raises OSError where the owner lives."""
    try:
        lock = os.open(folder / _LOCK, os.O_RDWR | getattr(os, "O_NOFOLLOW", 0))
    except FileNotFoundError:
        # Its owner was killed before it had a lock, and so before it had anything else.
        folder.rmdir()
        return
    try:
        take(lock)
    except OSError:
        os.close(lock)
        raise
    _remove(folder, lock)


def _remove(folder: Path, lock: int) -> None:
    """The pack first, the lock last: a kill in between leaves what the next run removes."""
    _remove_tree(folder / _PACK)
    # Windows removes no open file. In the moment between, another run may remove
    # the rest, which is just as well.
    os.close(lock)
    with suppress(OSError):
        (folder / _LOCK).unlink()
        folder.rmdir()


def _remove_tree(folder: Path) -> None:
    if sys.platform == "win32":
        # A copy keeps that mark.
        for path in folder.rglob("*"):
            make_removable(path)
    shutil.rmtree(folder, ignore_errors=True)
