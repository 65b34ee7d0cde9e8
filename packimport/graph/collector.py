"""Collector: Python's search for cycles, put to rest while a graph is read."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def resting() -> Iterator[None]:
    """No search for cycles inside the block; as before after it.

    A large graph becomes hundreds of thousands of objects that live until the end. The
    collector would walk them again and again, for a fifth of the time, and find nothing.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
