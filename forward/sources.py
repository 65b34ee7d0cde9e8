"""Sources: which files of a pack a run reads, and their sha256, while it runs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from forward.genai_config import FILE, Decoder
from packimport.pack.container import Container, changed_error
from packimport.pack.digests import sha256_of, sha256_of_files
from packimport.pack.progress import OnProgress, Progress, run

# name ─▶ (bytes, sha256)
Hashes = Mapping[str, tuple[int, str]]


class _Unwanted(Exception):
    """The run has failed: nobody needs its hashes."""


def files_read(container: Container, decoder: Decoder) -> tuple[str, ...]:
    """genai_config.json, the graph, and the files that hold its data or its runtime's.

    Raises GraphError or ContainerError where external data lies outside the pack,
    or beyond the end of its file: older onnxruntimes would read there.
    """
    from packimport.graph.node import STANDARD
    from packimport.graph.onnx_file import OnnxFile
    from packimport.graph.spans import Spans

    file = OnnxFile(container, decoder.graph)
    spans = Spans(file)
    names = {FILE, decoder.graph, *(decoder.ryzen_ai.files if decoder.ryzen_ai else ())}
    for body in file.bodies():
        constants = (node.tensor("value") for node in body.nodes(STANDARD, "Constant"))
        for tensor in (*body.tensors(), *filter(None, constants)):
            if span := spans.external(tensor):
                names.add(span[0])
    return tuple(sorted(names))


@contextmanager
def pack_hashes(container: Container, names: Sequence[str]) -> Iterator[Callable[[], Hashes]]:
    """Hash files of a pack during the block, in other threads; the callable waits for the end.

    Raises ContainerError, from the callable, where a file changed meanwhile.
    """

    def digest(on_progress: OnProgress) -> Hashes:
        digests = sha256_of_files(container, names, on_progress)
        if changed := set(container.changed()) & set(names):
            raise changed_error(tuple(sorted(changed)))
        return {name: (container.size(name), digests[name]) for name in names}

    with _meanwhile(digest) as result:
        yield result


@contextmanager
def file_hashes(files: Mapping[str, Path]) -> Iterator[Callable[[], Hashes]]:
    """The same for files that are in no pack: name ─▶ path."""
    sizes = {name: path.stat().st_size for name, path in files.items()}
    progress = Progress(sum(sizes.values()))

    def one(name: str) -> tuple[int, str]:
        size = sizes[name]
        with files[name].open("rb") as file:
            return size, sha256_of(file.fileno(), size, name, lambda _: size, progress)

    def digest(on_progress: OnProgress) -> Hashes:
        return dict(zip(files, run(one, files, progress, on_progress), strict=True))

    with _meanwhile(digest) as result:
        yield result


def stamp(path: Path) -> list[int]:
    """Size, and time of the last change in nanoseconds: the same for the same file, most likely."""
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns]


@contextmanager
def _meanwhile(work: Callable[[OnProgress], Hashes]) -> Iterator[Callable[[], Hashes]]:
    unwanted = threading.Event()

    def go_on(_done: int, _total: int) -> None:
        if unwanted.is_set():
            raise _Unwanted

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work, go_on)
        try:
            yield future.result
        finally:
            unwanted.set()
