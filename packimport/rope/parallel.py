"""Parallel work over blocks of rows: numpy frees the interpreter while it computes."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import numpy as np

Result = TypeVar("Result")

# Entries of a block where the work is float64's, and where it is float32's: threads take turns
# at the interpreter between numpy's calls, so that smaller blocks gain nothing by a second core,
# and larger ones leave the cache. Measured from 2^12 to 2^20.
WIDE, NARROW = 1 << 17, 1 << 18
_LARGER = 1 << 23


def block_rows(pairs: int, entries: int = WIDE) -> int:
    """How many rows of `pairs` entries make a block of at most `entries`."""
    return max(1, entries // max(1, pairs))


def map_rows(
    work: Callable[[int, int], Result], start: int, stop: int, size: int
) -> Iterator[Result]:
    """work(first, last) for each block of `size` rows from start to stop, in order.

    Blocks are computed in threads, but never more ahead of the consumer than
    there are threads: results may be large.
    """
    blocks = [(first, min(first + size, stop)) for first in range(start, stop, size)]
    threads = min(cores(), len(blocks))
    if threads < 2:
        yield from (work(first, last) for first, last in blocks)
        return
    # glibc maps arrays of a block's size anew each time, and the pages with them, until a
    # larger one was freed: a fifth of the whole time of a check. Its memory is never touched.
    np.empty(_LARGER, np.uint8)
    with ThreadPoolExecutor(threads) as pool:
        ahead: deque[Future[Result]] = deque()
        for first, last in blocks:
            ahead.append(pool.submit(work, first, last))
            if len(ahead) > threads:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


def cores() -> int:
    """The cores that this process may use; Windows has no affinity to ask for."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
