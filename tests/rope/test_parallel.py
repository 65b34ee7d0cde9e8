"""Blocks of rows in threads: all of them, in order, and never far ahead."""

from __future__ import annotations

import pytest

from packimport.rope import parallel
from packimport.rope.parallel import NARROW, WIDE, block_rows, map_rows


@pytest.fixture(params=[1, 2, 5])
def cores(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(parallel, "cores", lambda: request.param)
    return request.param


@pytest.mark.parametrize(("start", "stop", "size"), [(0, 10, 3), (7, 107, 10), (0, 5, 100)])
def test_every_row_once_in_order(cores: int, start: int, stop: int, size: int) -> None:
    found = list(map_rows(lambda first, last: (first, last), start, stop, size))
    rows = [row for first, last in found for row in range(first, last)]
    assert rows == list(range(start, stop))
    assert all(last - first <= size for first, last in found)


def test_no_rows(cores: int) -> None:
    assert list(map_rows(lambda first, last: (first, last), 3, 3, 5)) == []


def test_results_wait_for_the_consumer(cores: int) -> None:
    begun: list[int] = []

    def work(first: int, last: int) -> int:
        begun.append(first)
        return first

    for done, _ in enumerate(map_rows(work, 0, 100, 1)):
        # One in hand, and at most one per thread under way.
        assert len(begun) <= done + 1 + cores


def test_an_error_reaches_the_consumer(cores: int) -> None:
    def work(first: int, last: int) -> int:
        if first == 20:
            raise ValueError("row 20")
        return first

    with pytest.raises(ValueError, match="row 20"):
        list(map_rows(work, 0, 100, 10))


def test_a_block_is_about_as_large_for_any_width() -> None:
    assert block_rows(1) == WIDE
    assert block_rows(64, NARROW) * 64 == NARROW
    assert block_rows(10 * WIDE) == 1
    assert block_rows(0) == WIDE
