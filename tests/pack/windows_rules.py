"""A disk by the rules of Windows, for a process that runs on Linux.

There, what is open is not renamed, replaced or removed, nor a folder that holds it; what is
marked read-only is not replaced or removed; and a rename replaces nothing. `main` does what
its arguments say on a pack, under these rules.
"""

from __future__ import annotations

import json
import os
import stat
import sys
import types
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from faulty_disk import RUNS
from os_calls import set_call


class Refused(PermissionError):
    """What Windows raises."""

    def __init__(self, winerror: int, path: object) -> None:
        super().__init__(13, f"refused by the rules of Windows ({winerror})", path)
        self.winerror = winerror


def opened() -> list[str]:
    """The files that this process has open; folders are open in no such way on Windows."""
    found = []
    for link in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            path = str(link.readlink())
            if path.startswith("/") and stat.S_ISREG(link.stat().st_mode):
                found.append(path)
    return found


def whole(path: Any, dir_fd: int | None) -> str:
    at = Path.cwd() if dir_fd is None else Path(f"/proc/self/fd/{dir_fd}").readlink()
    return os.path.normpath(at / path)


def refuse_open(path: str) -> None:
    if any(other == path or other.startswith(path + "/") for other in opened()):
        raise Refused(32, path)


def refuse_read_only(path: str) -> None:
    if Path(path).is_file() and not Path(path).lstat().st_mode & stat.S_IWUSR:
        raise Refused(5, path)


def removing(real: Callable[..., None]) -> Callable[..., None]:
    def call(path: Any, *, dir_fd: int | None = None) -> None:
        refuse_open(whole(path, dir_fd))
        refuse_read_only(whole(path, dir_fd))
        real(path, dir_fd=dir_fd)

    return call


def moving(real: Callable[..., None], *, replaces: bool) -> Callable[..., None]:
    def call(source: Any, target: Any) -> None:
        refuse_open(whole(source, None))
        if os.path.lexists(target):
            if not replaces:
                raise FileExistsError(17, "refused by the rules of Windows", target)
            refuse_open(whole(target, None))
            refuse_read_only(whole(target, None))
        real(source, target)

    return call


def obey() -> None:
    """From here on, by these rules."""
    import fcntl

    msvcrt = types.ModuleType("msvcrt")
    msvcrt.LK_NBLCK = 2  # type: ignore[attr-defined]  # made here

    def locking(descriptor: int, mode: int, count: int) -> None:
        assert (mode, count) == (2, 1)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, 1)
        except OSError as error:
            raise PermissionError(13, "Permission denied") from error

    msvcrt.locking = locking  # type: ignore[attr-defined]  # made here
    sys.modules["msvcrt"] = msvcrt
    os.O_TEMPORARY = 0  # type: ignore[attr-defined]  # Windows has it
    for name in ("unlink", "remove", "rmdir"):
        set_call(name, removing(getattr(os, name)))
    set_call("rename", moving(os.rename, replaces=False))
    set_call("replace", moving(os.replace, replaces=True))
    sys.platform = "win32"


def main(root: Path, *steps: str) -> None:
    said = []
    obey()
    for step in steps:
        try:
            RUNS[step](root)
            said.append("done")
        except Exception as error:
            said.append(f"{type(error).__name__}: {error}")
    sys.platform = "linux"
    print(json.dumps(said))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
