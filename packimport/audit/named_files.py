"""Named files: those that a pack can't run without, and that are not there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from packimport.audit.options import options
from packimport.errors import ContainerError
from packimport.graph.site import GraphFacts
from packimport.pack.container import Container
from packimport.pack.names import location_refusal
from packimport.pack.pointers import pointers
from packimport.semantics.genai import FILE

# The header of the weights that lie outside of the graph's own data.
_HEADER = "external_data_file"
HEADER, WEIGHTS = ".pb.bin", ".bin"


def refuse_missing(container: Container) -> None:
    """Raise ContainerError for a file that genai_config.json names and the pack lacks.

    And for pointers of Git LFS in place of files, whatever these are.
    """
    found = pointers(container)
    if found:
        more = f", and of {len(found) - 1} more files" if len(found) > 1 else ""
        raise ContainerError(
            f"a pointer of Git LFS stands in place of the file{more}",
            place=found[0],
            found=", ".join(found) if len(found) > 1 else None,
            fix="Run `git lfs pull` in the folder.",
        )
    for header in _headers(container):
        container.safe_name(header, FILE)


def refuse_missing_weights(container: Container, facts: Iterable[GraphFacts]) -> None:
    """Raise ContainerError where the weights are missing that were taken out of a graph.

    `X.pb.bin` says what lies where in `X.bin`. Source: AMD's ryzenai_onnx_utils.
    """
    if not any(graph.offloaded for graph in facts):
        return
    for header in _headers(container):
        stem, end = header[: -len(HEADER)], header[-len(HEADER) :]
        if end == HEADER and not container.has(f"{stem}{WEIGHTS}"):
            raise ContainerError(
                f"the file is missing; {header} says where the graph's weights lie in it",
                place=f"{stem}{WEIGHTS}",
                fix="Download the pack again, to its end.",
            )


def _headers(container: Container) -> Iterator[str]:
    """The headers that genai_config names; a path out of the pack is nobody's to follow."""
    for option in options(container, _HEADER):
        name = option.value
        # An empty text is the runtime's word for none.
        if isinstance(name, str) and name and location_refusal(name) is None:
            yield name
