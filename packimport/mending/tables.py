"""Tables: the values that a node needs, against those that it has."""

from __future__ import annotations

from collections.abc import Iterator

from packimport.graph.changes.draft import Draft
from packimport.graph.changes.new_tables import Contents, Pair, add, overwrite, replace
from packimport.graph.encodings import decode, encode, values_dtype
from packimport.graph.site import Site
from packimport.mending.in_place import edit_of
from packimport.pack.container import Container
from packimport.pack.edits import Edit
from packimport.rope.difference import difference
from packimport.rope.frequencies import frequencies
from packimport.rope.schedule import Rope
from packimport.rope.tables import table


def is_right(container: Container, site: Site, rope: Rope, seq_len: int | None = None) -> bool:
    """Whether every row of a site's table is that of `rope`, for a call of `seq_len`."""
    if site.pairs != rope.pairs:
        return False
    cos, sin = decode(site, container)
    return difference(cos, sin, frequencies(rope, seq_len)).wrong_pairs == 0


def contents(
    site: Site, rope: Rope, rows: int, reason: str, seq_len: int | None = None
) -> Contents:
    """The table of `rope` with `rows` rows, stored as that of `site` is."""
    right = table(rope, rows, seq_len=seq_len, dtype=values_dtype(site))
    cos, sin = encode(right, site.cos.dtype, site.encoding)
    return Contents(shape=(rows, rope.pairs), values=(cos, sin), reason=reason)


class Work:
    """A table of a graph under change: it is kept, rewritten, replaced, or joined by others."""

    def __init__(self, container: Container, draft: Draft, pair: Pair, site: Site) -> None:
        self._container = container
        self._draft = draft
        self.pair = pair
        self.site = site
        self.edits: list[Edit] = []

    def give(self, rope: Rope, rows: int, reason: str, seq_len: int | None = None) -> None:
        """Let the table hold `rope`, in at least `rows` rows; nothing where it does."""
        rows = max(rows, self.site.rows)
        fits = (self.site.rows, self.site.pairs) == (rows, rope.pairs)
        if fits and is_right(self._container, self.site, rope, seq_len):
            return
        new = contents(self.site, rope, rows, reason, seq_len)
        if not fits:
            replace(self._draft, self.pair, new)
        elif self.site.cos.file == self._draft.file.name:
            overwrite(self._draft, self.pair, new)
        else:
            self.edits += self._edits(new)

    def add(
        self, what: str, rope: Rope, rows: int, reason: str, *, seq_len: int | None = None
    ) -> tuple[str, str]:
        """A table more; the names of cos and sin."""
        cos, sin = self.pair.names
        new = contents(self.site, rope, rows, reason, seq_len)
        return add(self._draft, self.pair, (f"{cos}_{what}", f"{sin}_{what}"), new)

    def _edits(self, new: Contents) -> Iterator[Edit]:
        for span, values in zip(self.pair.spans, new.values, strict=True):
            yield from edit_of(self._container, span, values, new.reason)
