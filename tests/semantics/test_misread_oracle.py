"""The configs of misread_configs against the live transformers 5.24.0 (extra `oracle`)."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from little_configs import reading
from misread_configs import NOTED, READ

from packimport.rope.frequencies import frequencies

pytestmark = pytest.mark.oracle
pytest.importorskip("transformers", minversion="5.24.0")
pytest.importorskip("torch")
ORACLE = Path(__file__).parent / "transformers_tables.py"


@cache
def answers() -> dict[str, Any]:
    """What transformers computes for each config, by name."""
    configs = {name: case[0] for name, case in {**NOTED, **READ}.items()}
    done = subprocess.run(
        [sys.executable, str(ORACLE)],
        input=json.dumps(configs),
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def tables(name: str) -> list[np.ndarray]:
    """The frequencies of each rotary buffer."""
    found = answers()[name]
    assert isinstance(found, dict), found
    return [np.array([float.fromhex(x) for x in t["inv_freq"]]) for t in found.values()]


def ours(value: dict[str, object]) -> list[np.ndarray]:
    return [frequencies(rope).inv_freq for rope in set(reading(value).layers) if rope is not None]


def near(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and bool(np.allclose(one, other, rtol=1e-5, atol=0))


@pytest.mark.parametrize("name", READ)
def test_read_as_the_class_does(name: str) -> None:
    value, _, second = READ[name]
    (table,) = tables(name)
    assert table[1] == pytest.approx(second, rel=1e-5)
    (mine,) = ours(value)
    assert near(mine, table)


@pytest.mark.parametrize("name", NOTED)
def test_what_is_noted_differs(name: str) -> None:
    """A note that nothing needs would only alarm."""
    theirs = tables(name)
    assert not all(any(near(mine, table) for table in theirs) for mine in ours(NOTED[name][0]))
