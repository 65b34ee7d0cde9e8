"""Data set: the dumps of one run over many prompts, which are compared as one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from forward.dump import DUMP, Dump, read_dump
from packimport.errors import DumpError


@dataclass(frozen=True, slots=True, eq=False)
class DataSet:
    """Dumps in the order of their prompts; one dump alone is a set, too.

    name: what messages call all of them: their folder.
    """

    name: str
    dumps: tuple[Dump, ...]


def data_set(dumps: Dump | DataSet) -> DataSet:
    """A dump as a set of one; a set as it is."""
    return dumps if isinstance(dumps, DataSet) else DataSet(dumps.name, (dumps,))


def read_data_set(folder: Path | str) -> DataSet:
    """The dump in `folder`, or those in the folders of it, in the order of their names.

    `--prompts` and `import` of a base write such folders: 00000 and on, chunk-0000 and on.
    """
    folder = Path(folder)
    if not (folder / DUMP).is_file() and folder.is_dir():
        # What a killed run left may begin with a dot; it is no dump of the set.
        parts = sorted(
            part
            for part in folder.iterdir()
            if not part.name.startswith(".") and (part / DUMP).is_file()
        )
        if parts:
            return DataSet(str(folder), tuple(map(read_dump, parts)))
    return data_set(read_dump(folder))


def pairs(one: DataSet, other: DataSet) -> Iterator[tuple[Dump, Dump]]:
    """The dumps of both, one by one. Raises DumpError where one set has more."""
    if len(one.dumps) != len(other.dumps):
        raise DumpError(
            "the folders hold different numbers of dumps",
            place=other.name,
            found=len(other.dumps),
            allowed=f"{len(one.dumps)}, as in {one.name}",
            fix="Make both with the same --prompts FILE.",
        )
    return zip(one.dumps, other.dumps, strict=True)
