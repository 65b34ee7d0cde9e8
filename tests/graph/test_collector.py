"""The collector of cycles rests while a graph is read, and is as before after it."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from builders import tiny_pack
from graphs import facts

from packimport.errors import GraphError
from packimport.graph.collector import resting


@pytest.mark.parametrize("on", [True, False])
def test_it_is_left_as_it_was(on: bool) -> None:
    before = gc.isenabled()
    (gc.enable if on else gc.disable)()
    try:
        with resting():
            assert not gc.isenabled()
        assert gc.isenabled() == on
        with pytest.raises(ZeroDivisionError), resting():
            raise ZeroDivisionError
        assert gc.isenabled() == on
    finally:
        (gc.enable if before else gc.disable)()


def test_a_damaged_graph_leaves_it_on(tmp_path: Path) -> None:
    pack = tiny_pack(tmp_path / "p")
    (pack / "model.onnx").write_bytes(b"\x0a")
    assert gc.isenabled()
    with pytest.raises(GraphError):
        facts(pack)
    assert gc.isenabled()
