"""Which tokens are fed together."""

from __future__ import annotations

import pytest

from forward.steps import Step, plan
from packimport.errors import UsageError


@pytest.mark.parametrize(
    ("count", "decode", "chunk", "spans"),
    [
        (5, 0, None, [(0, 5, False)]),
        (5, 2, None, [(0, 3, False), (3, 4, True), (4, 5, True)]),
        (5, 1, 3, [(0, 3, False), (3, 4, False), (4, 5, True)]),
        (6, 0, 3, [(0, 3, False), (3, 6, False)]),
        (2, 2, None, [(0, 1, True), (1, 2, True)]),
        (2, 0, 9, [(0, 2, False)]),
        (0, 0, None, []),
    ],
)
def test_plans(
    count: int, decode: int, chunk: int | None, spans: list[tuple[int, int, bool]]
) -> None:
    assert plan(count, decode, chunk) == tuple(Step(*span) for span in spans)


@pytest.mark.parametrize(("decode", "chunk"), [(-1, None), (6, None), (0, 0), (0, -3)])
def test_nonsense_is_refused(decode: int, chunk: int | None) -> None:
    with pytest.raises(UsageError):
        plan(5, decode, chunk)
