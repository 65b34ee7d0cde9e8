"""Calls of `os` that are replaced: for pathlib too, which before Python 3.11 keeps its own."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Callable
from typing import Any


def set_call(name: str, call: Callable[..., Any]) -> None:
    accessor = getattr(pathlib, "_normal_accessor", None)
    # Its `open` is another one.
    if getattr(accessor, name, None) is getattr(os, name):
        setattr(accessor, name, call)
    setattr(os, name, call)
