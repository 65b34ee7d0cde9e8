"""Ryzen AI graphs that are not quite as known: never ok, and refused by name or mended."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from ryzen_bytes import baked, changed_tables, every_node, tensors
from ryzen_packs import FAMILIES, Pack, build
from ryzen_reports import Change, edited, errors, judged
from ryzen_tables import LLAMA3, plain_instead

from packimport import check, patch
from packimport.errors import PatchError

ROWS = 1024
BF16 = np.dtype(ml_dtypes.bfloat16)
TOKEN, PREFILL = "sin_cos_cache_token", "sin_cos_cache_prefill"


def right(family: str, folder: Path, change: Change | None = None, **options: object) -> Pack:
    """A right pack, whose graph is then changed on disk."""
    tables = LLAMA3.right(ROWS)
    pack = build(family, folder / "pack", LLAMA3, tables=tables, **options)  # type: ignore[arg-type]
    return edited(pack, change)


def node(model: onnx.ModelProto, op: str, output: str | None = None) -> onnx.NodeProto:
    return next(
        n
        for n in every_node(model.graph)
        if n.op_type == op and (output is None or output in n.output)
    )


def tensor(model: onnx.ModelProto, name: str) -> TensorProto:
    return dict(tensors(model.graph))[name]


def renamed(old: str) -> Change:
    """Give a value another name, wherever it stands."""

    def change(model: onnx.ModelProto) -> None:
        for one in every_node(model.graph):
            one.input[:] = ["table" if name == old else name for name in one.input]
            one.output[:] = ["table" if name == old else name for name in one.output]

    return change


def with_inputs(count: int) -> Change:
    def change(model: onnx.ModelProto) -> None:
        for one in every_node(model.graph):
            if one.op_type == "GQO":
                one.input[:] = [*one.input, *[""] * 20][:count]

    return change


def sliced_from(start: int) -> Change:
    def change(model: onnx.ModelProto) -> None:
        values = node(model, "Constant", "const_0").attribute[0]
        values.CopyFrom(helper.make_attribute("value_ints", [start]))

    return change


def as_float16(name: str) -> Change:
    """The table's bytes said to be float16, which is as wide."""

    def change(model: onnx.ModelProto) -> None:
        tensor(model, name).data_type = TensorProto.FLOAT16

    return change


def two_tables(model: onnx.ModelProto) -> None:
    node(model, "DynamicDispatch").input.append(TOKEN)


UNREAD: dict[str, tuple[str, Change]] = {
    "an unknown token table": ("npu 1.6", renamed(TOKEN)),
    "an unknown prefill table": ("full fusion 1.8", renamed(PREFILL)),
    "GQO with 12 inputs": ("hybrid 1.7", with_inputs(12)),
    "GQO with 20 inputs": ("eager 1.8", with_inputs(20)),
    "rows from 1 on": ("full fusion 1.8", sliced_from(1)),
    "a float16 token table": ("token fusion 1.8", as_float16(TOKEN)),
    "a float16 prefill table": ("full fusion 1.8", as_float16(PREFILL)),
    "a table taken twice": ("npu 1.6", two_tables),
}


@pytest.mark.parametrize("what", sorted(UNREAD))
def test_what_is_not_known_is_refused(what: str, tmp_path: Path) -> None:
    family, change = UNREAD[what]
    pack = right(family, tmp_path, change)
    report = judged(pack)
    assert (report.verdict, report.exit_code) == ("unsupported", 3), report.text()
    assert errors(report) & {"RPE003", "RPE004"}
    with pytest.raises(PatchError):
        patch(pack.path, tmp_path / "out", config=pack.config)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("family", ["hybrid 1.4", "hybrid 1.7", "eager 1.8", "npu 1.6"])
def test_layers_that_do_not_rotate(family: str, tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        for one in every_node(model.graph):
            if one.op_type == "GQO":
                next(a for a in one.attribute if a.name == "do_rotary").i = 0

    report = judged(right(family, tmp_path, change))
    assert "RPE006" in errors(report)
    assert report.exit_code == 1


def rewritten(name: str, edit: Callable[[np.ndarray], np.ndarray]) -> Change:
    """Other values of a bfloat16 table."""

    def change(model: onnx.ModelProto) -> None:
        found = tensor(model, name)
        values = np.frombuffer(found.raw_data, BF16).reshape(list(found.dims))
        found.raw_data = edit(values.copy()).astype(BF16).tobytes()

    return change


def one_copy(quarter: int) -> Callable[[np.ndarray], np.ndarray]:
    """Change an entry of one quarter of a row: hi, hi, lo or lo."""

    def edit(values: np.ndarray) -> np.ndarray:
        values[0, ROWS // 2, quarter * LLAMA3.pairs + 3] = 0.25
        return values

    return edit


def without_lo(values: np.ndarray) -> np.ndarray:
    values[..., values.shape[-1] // 2 :] = 0
    return values


def sin_before_cos(values: np.ndarray) -> np.ndarray:
    return np.concatenate(np.split(values, 2, axis=1)[::-1], axis=1)


DAMAGED: dict[str, tuple[str, str, Callable[[np.ndarray], np.ndarray]]] = {
    **{f"quarter {q} differs": ("full fusion 1.8", PREFILL, one_copy(q)) for q in range(4)},
    "lo is lost": ("full fusion 1.8", PREFILL, without_lo),
    "sin at index 0": ("full fusion 1.8", PREFILL, lambda values: values[::-1]),
    "sin before cos": ("npu 1.6", TOKEN, sin_before_cos),
}


@pytest.mark.parametrize("what", sorted(DAMAGED))
def test_a_damaged_table_is_found_and_mended(what: str, tmp_path: Path) -> None:
    family, name, edit = DAMAGED[what]
    pack = right(family, tmp_path, rewritten(name, edit))
    report = judged(pack)
    assert (report.verdict, report.exit_code) == ("mismatch", 1), report.text()
    measured = {site.site.tensors[0].name: site.measurement for site in report.sites}
    assert measured[name].wrong_pairs
    assert [n for n, m in measured.items() if m.wrong_pairs] == [name]
    if "sin" in what:
        assert measured[name].baked_as == "llama3, cos and sin swapped"
        assert "RPE020" in errors(report)
    patch(pack.path, tmp_path / "out", config=pack.config)
    assert check(tmp_path / "out").verdict == "ok"
    assert changed_tables(pack.path, tmp_path / "out", pack.graph) == {name}
    assert all(place.is_right(LLAMA3) for place in baked(tmp_path / "out", pack.graph).values())


def test_a_prefill_table_made_from_float32(tmp_path: Path) -> None:
    """hi + lo has 16 bits then, and is within an ulp of float16 of what is declared."""
    pack = right("full fusion 1.8", tmp_path, table_dtype="float32")
    report = judged(pack)
    assert (report.verdict, errors(report)) == ("ok", set()), report.text()


@pytest.mark.parametrize("family", ["hybrid 1.7", "npu 1.6"])
def test_names_of_gqo_tables_mean_nothing(family: str, tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        other = {"cos_cache": "a", "sin_cache": "b"}
        for name, found in tensors(model.graph):
            found.name = other.get(name, found.name)
        for one in every_node(model.graph):
            one.input[:] = [other.get(name, name) for name in one.input]

    report = judged(right(family, tmp_path, change))
    assert (report.verdict, errors(report)) == ("ok", set()), report.text()


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_snapshot_of_a_hub_cache(family: str, tmp_path: Path) -> None:
    """Every file a link into `blobs`: checked as it lies, patched into a folder of files."""
    wrong = plain_instead(LLAMA3, ROWS)
    pack = build(family, tmp_path / "pack", LLAMA3, tables=wrong)
    snapshot, blobs = tmp_path / "hub" / "snapshots" / "main", tmp_path / "hub" / "blobs"
    blobs.mkdir(parents=True)
    for path in sorted(pack.path.rglob("*")):
        target = snapshot / path.relative_to(pack.path)
        if path.is_dir():
            continue
        blob = blobs / hashlib.sha256(path.read_bytes()).hexdigest()
        shutil.copyfile(path, blob)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(os.path.relpath(blob, target.parent))
    report = check(snapshot, config=pack.config)
    assert (report.format, report.exit_code) == ("hub snapshot", 1)
    patch(snapshot, tmp_path / "out", config=pack.config)
    assert check(tmp_path / "out").verdict == "ok"
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_symlink()]
    changed_tables(pack.path, tmp_path / "out", pack.graph)
