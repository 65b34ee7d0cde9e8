"""Limits: how many tokens a pack takes, checked before it runs."""

from __future__ import annotations

from forward.genai_config import FILE, Decoder
from packimport.errors import DumpError, GraphError
from packimport.graph.find import find_sites
from packimport.pack.container import Container


def check_length(container: Container, decoder: Decoder, count: int) -> tuple[int, ...]:
    """Refuse more tokens than the context of the pack, or than the rows of its RoPE tables.

    onnxruntime before 1.27 reads memory that is not the table's for a position beyond
    the rows; later ones fail there, in the middle of the run. Of several tables the
    longest counts: a graph may choose by length.
    Returns the positions below `count` at which a shorter table ends.
    """
    if count > decoder.context_length:
        raise DumpError(
            "more tokens than the pack's context_length",
            place=f"{FILE}#/model/context_length",
            found=count,
            allowed=f"{decoder.context_length} or fewer",
        )
    sites = find_sites(container, decoder.graph).sites
    lengths = {site.rows for site in sites if site.table is not None}
    rows = max(lengths, default=count)
    if count > rows:
        raise GraphError(
            "more tokens than the RoPE tables of the graph have rows",
            place=decoder.graph,
            found=count,
            allowed=f"{rows} or fewer",
        )
    return tuple(sorted(length for length in lengths if length < count))
