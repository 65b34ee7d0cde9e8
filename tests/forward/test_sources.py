"""Which files a run reads, and their hashes."""

from __future__ import annotations

import hashlib
import threading
from pathlib import Path

import onnx
import pytest
from builders import tiny_pack

from forward.genai_config import read_decoder
from forward.runner import run_logits
from forward.sources import file_hashes, files_read, pack_hashes
from packimport.errors import ContainerError, GraphError, PackimportError
from packimport.pack.container import Container, open_container

FILES = ("genai_config.json", "model.onnx", "model.onnx.data")


def read(folder: Path) -> tuple[Container, tuple[str, ...]]:
    container = open_container(folder)
    return container, files_read(container, read_decoder(container))


def test_the_graph_its_data_and_the_config_alone(tmp_path: Path) -> None:
    pack = tiny_pack(tmp_path / "p", config={})
    (pack / "other.onnx").write_bytes(b"another variant")
    container, names = read(pack)
    assert names == FILES
    with pack_hashes(container, names) as result:
        assert result() == {
            name: (
                (pack / name).stat().st_size,
                hashlib.sha256((pack / name).read_bytes()).hexdigest(),
            )
            for name in FILES
        }


def test_data_of_constants_and_of_branches_counts(tmp_path: Path) -> None:
    """An If whose branch holds a Constant with a data file of its own."""

    def external(graph: onnx.GraphProto) -> None:
        tensor = graph.node.add(op_type="Constant", output=["c"]).attribute.add(
            name="value", type=onnx.AttributeProto.TENSOR
        )
        tensor.t.CopyFrom(onnx.TensorProto(name="c", data_type=1, dims=[1]))
        tensor.t.data_location = onnx.TensorProto.EXTERNAL
        tensor.t.external_data.add(key="location", value="branch.data")

    def change(model: onnx.ModelProto) -> None:
        branch = model.graph.node.add(op_type="If", name="choice", output=["unused"])
        external(branch.attribute.add(name="then_branch", type=onnx.AttributeProto.GRAPH).g)

    pack = tiny_pack(tmp_path / "p", inline=True, change=change)
    (pack / "branch.data").write_bytes(bytes(4))
    assert read(pack)[1] == ("branch.data", "genai_config.json", "model.onnx")


@pytest.mark.parametrize("location", ["../secret", "/etc/passwd", "missing.data"])
def test_data_outside_the_pack_is_refused(tmp_path: Path, location: str) -> None:
    (tmp_path / "secret").write_bytes(bytes(10**6))
    pack = tiny_pack(tmp_path / "p")
    _relocate(pack, location)
    with pytest.raises(ContainerError):
        read(pack)
    with pytest.raises(ContainerError):
        run_logits(pack, [1, 2])


def test_data_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    pack = tiny_pack(tmp_path / "p")
    data = (pack / "model.onnx.data").read_bytes()
    (pack / "model.onnx.data").write_bytes(data[:-1])
    with pytest.raises(GraphError, match="end beyond"):
        read(pack)


def _relocate(pack: Path, location: str) -> None:
    model = onnx.load(pack / "model.onnx", load_external_data=False)
    entries = (e for t in model.graph.initializer for e in t.external_data)
    next(e for e in entries if e.key == "location").value = location
    (pack / "model.onnx").write_bytes(model.SerializeToString())


def test_a_pack_that_changes_during_the_run_is_an_error(tmp_path: Path) -> None:
    container, names = read(tiny_pack(tmp_path / "p"))
    (tmp_path / "p" / "model.onnx.data").write_bytes(b"other")
    with pack_hashes(container, names) as result, pytest.raises(ContainerError, match="changed"):
        result()


def test_nobody_waits_for_hashes_of_a_failed_run(tmp_path: Path) -> None:
    """20 GB of zeros, hashed at 2 GB/s at best, are left alone after a failure."""
    with (tmp_path / "large").open("wb") as file:
        file.truncate(20 * 10**9)
    failed = threading.Event()

    def run() -> None:
        with pytest.raises(PackimportError), file_hashes({"large": tmp_path / "large"}):
            raise PackimportError("no")
        failed.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    assert failed.wait(5)
