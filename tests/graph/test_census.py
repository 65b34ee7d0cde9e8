"""A graph that would take gigabytes is refused before it is parsed; windows of any size do."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from graphs import PACKS, facts
from onnx import helper
from test_wire import length_of

from packimport.errors import GraphError
from packimport.graph import census, wire
from packimport.graph.census import refuse_dense
from packimport.graph.wire import Wire
from packimport.pack.container import open_container
from packimport.pack.file_view import FileView

EVERY = sorted(path.name for path in PACKS.iterdir())
MODEL = onnx.ModelProto.DESCRIPTOR


@pytest.fixture(autouse=True)
def low_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(census, "UNCOUNTED", 100)
    monkeypatch.setattr(census, "MAX_RECORDS", 1000)


@pytest.mark.parametrize(
    "content",
    [
        length_of(1, b"") * 2000,
        length_of(1, length_of(5, b"") * 2000),
        length_of(1, length_of(5, length_of(6, length_of(11, b"") * 2000))),
        length_of(11, length_of(2, length_of(1, length_of(2, length_of(1, b"") * 2000)))),
        length_of(1, length_of(9, b"") * 10) * 200,
        length_of(5, length_of(13, b"") * 2000),
    ],
    ids=["nodes", "attributes", "of a nested graph", "dims of an input", "metadata", "external"],
)
def test_records_are_counted_wherever_they_are(content: bytes) -> None:
    data = length_of(7, content)
    assert len(onnx.ModelProto.FromString(data).SerializeToString()) == len(data)
    with pytest.raises(GraphError, match="more records than any graph has"):
        refuse_dense(memoryview(data), MODEL, "model.onnx")


def test_long_names_and_few_records_pass() -> None:
    nodes = [helper.make_node("Add", ["a" * 500, "b"], ["c"], doc_string="d" * 5000)] * 50
    data = helper.make_model(helper.make_graph(nodes, "g", [], [])).SerializeToString()
    refuse_dense(memoryview(data), MODEL, "model.onnx")


def test_a_small_file_is_not_counted() -> None:
    refuse_dense(memoryview(length_of(7, length_of(1, b"") * 40)), MODEL, "model.onnx")


@pytest.mark.parametrize("window", [20, 64, 1000])
@pytest.mark.parametrize("name", EVERY)
def test_facts_do_not_depend_on_the_window(
    name: str, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(census, "MAX_RECORDS", 10**6)
    graph = next(path.name for path in (PACKS / name).glob("*.onnx"))
    before = facts(PACKS / name, graph=graph)
    monkeypatch.setattr(wire, "WINDOW", window)
    assert facts(PACKS / name, graph=graph) == before
    data = (PACKS / name / graph).read_bytes()
    read = Wire(FileView(open_container(PACKS / name), graph), graph).slim()
    assert bytes(read) == bytes(Wire(memoryview(data), graph).slim())


def test_only_what_is_kept_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The payload of a tensor stays on the disk."""
    tensor = helper.make_tensor("w", onnx.TensorProto.UINT8, [10**6], bytes(10**6), raw=True)
    model = helper.make_model(helper.make_graph([], "g", [], [], [tensor]))
    (tmp_path / "model.onnx").write_bytes(model.SerializeToString())
    container = open_container(tmp_path)
    asked: list[int] = []

    class Spy(FileView):
        def __getitem__(self, where: slice) -> memoryview:
            view = super().__getitem__(where)
            asked.append(len(view))
            return view

    monkeypatch.setattr(wire, "WINDOW", 1000)
    slim = Wire(Spy(container, "model.onnx"), "model.onnx").slim()
    assert len(slim) < 200
    assert sum(asked) < 5000
