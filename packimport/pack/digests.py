"""Digests: sha256 of files, in parallel and in bounded memory."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence

from packimport.pack.container import Container, changed_error
from packimport.pack.faults import faults
from packimport.pack.progress import OnProgress, Progress, run

CHUNK = 1 << 20


def sha256_of_files(
    container: Container, names: Sequence[str], on_progress: OnProgress | None = None
) -> dict[str, str]:
    """sha256, as lower-case hex, of each named file of `container`.

    Raises ContainerError for a file that is missing, unreadable or changed.
    """
    progress = Progress(sum(container.size(name) for name in names))

    def digest(name: str) -> str:
        with container.open(name) as descriptor, faults(name):
            size = container.size(name)
            return sha256_of(descriptor, size, name, lambda _: size, progress)

    # The largest first, so that no thread is left alone with it at the end.
    order = sorted(names, key=container.size, reverse=True)
    return dict(zip(order, run(digest, order, progress, on_progress), strict=True))


def sha256_of(
    descriptor: int, size: int, name: str, readable: Callable[[int], int], progress: Progress
) -> str:
    """sha256, as lower-case hex, of the first `size` bytes from where `descriptor` stands.

    name:     for errors.
    readable: given how many bytes were read, waits until there are more, and
              returns the end of those that may be read.
    """
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(min(CHUNK, max(size, 1))))
    done = 0
    with open(descriptor, "rb", buffering=0, closefd=False) as file:
        while done < size:
            count = file.readinto(buffer[: readable(done) - done])
            if not count:
                raise changed_error((name,))
            digest.update(buffer[:count])
            done += count
            progress.add(count)
    return digest.hexdigest()
