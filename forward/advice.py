"""Advice: what `packimport` knows of a pack that onnxruntime does not load or run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from packimport.audit.audit import check
from packimport.errors import GraphError, PackimportError

# Checks of what keeps a graph from loading or from running to the end.
_CODES = frozenset({"RPE008", "RPE009", "RPE016", "RPE018", "RPE040"})


@contextmanager
def advised(path: Path) -> Iterator[None]:
    """Lets a GraphError that names no cure say what the check of the pack at `path` advises.

    The pack is checked only then, and by its own config.
    """
    try:
        yield
    except GraphError as error:
        advice = _advice(path) if error.fix is None else None
        if advice is None:
            raise
        raise GraphError(
            error.message,
            place=error.place,
            found=error.found,
            allowed=error.allowed,
            fix=advice,
        ) from error


def _advice(path: Path) -> str | None:
    try:
        findings = check(path).findings
    except PackimportError:
        return None
    return next(
        (
            f"A known fault, {found.code}: {found.message}. Cure: {found.fix}."
            for found in findings
            if found.severity == "error" and found.code in _CODES
        ),
        None,
    )
