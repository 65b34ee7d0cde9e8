"""A short and a long table: every layout of them, and the faults that each may have.

Layouts as onnxruntime-genai 0.9.2 to 0.18.0 writes them for its execution providers.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from builders import rename_everything
from longrope_graphs import (
    LIMIT,
    LONG,
    PAIRS,
    ROWS,
    SHORT,
    Change,
    concatenated,
    one_if,
    pack_of,
    shift,
    sliced_if,
    table,
    two_ifs,
    with_option,
)
from onnx import numpy_helper

from packimport import check, patch
from packimport.audit.report import Report
from packimport.errors import DocumentError


def codes(report: Report) -> list[str]:
    return [finding.code for finding in report.findings]


def lengths(report: Report) -> dict[bool, int]:
    """Rows of the table for long calls, and of that for short ones."""
    found = {}
    for judged in report.sites:
        assert judged.site.length is not None
        assert judged.site.length.limit == LIMIT
        found[judged.site.length.long] = judged.site.rows
    return found


FORMS = ("gqa", "rotary_embedding")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    "change",
    [
        one_if,
        partial(one_if, limit=LIMIT + 1, op="GreaterOrEqual"),
        partial(one_if, op="LessOrEqual", swapped=True),
        partial(one_if, limit=LIMIT + 1, op="Less", swapped=True),
        two_ifs,
        sliced_if,
    ],
    ids=["one If", "not less", "less or equal", "less", "two Ifs", "sliced"],
)
def test_tables_in_branches(change: Change, form: str, tmp_path: Path) -> None:
    pack = pack_of(tmp_path / "p", form=form, change=change)
    report = check(pack)
    assert (report.verdict, codes(report)) == ("ok", []), report.text()
    assert lengths(report) == {True: ROWS, False: LIMIT}
    assert all(judged.site.layers == (0, 1) for judged in report.sites)
    rename_everything(pack)
    assert check(pack).verdict == "ok"


@pytest.mark.parametrize("where", [False, True])
def test_shifted_positions(where: bool, tmp_path: Path) -> None:
    pack = pack_of(
        tmp_path / "p", form="rotary_embedding", tables=concatenated(),
        change=partial(shift, where=where),
    )  # fmt: skip
    report = check(pack)
    assert (report.verdict, codes(report)) == ("ok", []), report.text()
    assert lengths(report) == {True: ROWS, False: LIMIT}


@pytest.mark.parametrize(
    "option", ["multiRotaryCacheConcatOffset", "multi_rotary_cache_concat_offset"]
)
@pytest.mark.parametrize("form", FORMS)
def test_an_option_of_the_provider_in_place_of_a_shift(
    option: str, form: str, tmp_path: Path
) -> None:
    pack = pack_of(tmp_path / "p", form=form, tables=concatenated())
    # Without it the long rows are read as those of positions from the limit on.
    report = check(pack)
    assert report.verdict == "mismatch"
    assert report.sites[0].measurement.first_bad_position == LIMIT
    report = check(with_option(pack, option, str(LIMIT)))
    assert (report.verdict, codes(report)) == ("ok", []), report.text()
    assert lengths(report) == {True: ROWS, False: LIMIT}
    assert check(with_option(pack, option, "0")).verdict == "mismatch"


@pytest.mark.parametrize("value", [16, "-1", "x", None])
def test_an_option_that_is_no_count(value: Any, tmp_path: Path) -> None:
    pack = pack_of(tmp_path / "p", form="gqa", tables=concatenated())
    with pytest.raises(DocumentError, match="no count of rows"):
        check(with_option(pack, "multiRotaryCacheConcatOffset", value))


def test_the_wrong_way_round(tmp_path: Path) -> None:
    """The long list at short context, and the reverse: bytes mend it."""
    pack = pack_of(tmp_path / "p", form="gqa", change=partial(one_if, swapped=True))
    report = check(pack)
    assert report.verdict == "mismatch"
    assert {"RPE001"} <= set(codes(report))


def test_a_switch_at_another_length(tmp_path: Path) -> None:
    report = check(pack_of(tmp_path / "p", form="gqa", change=partial(one_if, limit=LIMIT + 4)))
    assert report.verdict == "mismatch"
    assert "RPE022" in codes(report)
    # The short table has no row for the calls in between.
    assert "RPE009" in codes(report)


def branch_of(choice: onnx.NodeProto, name: str) -> list[onnx.NodeProto]:
    (attribute,) = [a for a in choice.attribute if a.name == name]
    return list(attribute.g.node)


def wrong_long(model: onnx.ModelProto) -> None:
    one_if(model)
    (choice,) = [n for n in model.graph.node if n.op_type == "If"]
    for made, values in zip(branch_of(choice, "then_branch"), table(SHORT, ROWS), strict=True):
        made.attribute[0].t.CopyFrom(numpy_helper.from_array(values.astype(np.float32), "t"))


def test_a_wrong_table_in_a_branch_is_mended_alone(tmp_path: Path) -> None:
    pack = pack_of(tmp_path / "p", form="gqa", change=wrong_long)
    report = check(pack)
    assert codes(report) == ["RPE001"]
    (bad,) = [j for j in report.sites if j.measurement.wrong_pairs]
    assert bad.site.length is not None
    assert bad.site.length.long
    patched = patch(pack, tmp_path / "out")
    assert {edit.file for edit in patched.edits} == {"model.onnx"}
    assert sum(edit.length for edit in patched.edits) == 2 * ROWS * PAIRS * 4
    assert check(tmp_path / "out").verdict == "ok"
    model = onnx.load(str(tmp_path / "out" / "model.onnx"))
    (choice,) = [n for n in model.graph.node if n.op_type == "If"]
    stored = numpy_helper.to_array(branch_of(choice, "then_branch")[0].attribute[0].t)
    assert np.abs(stored - table(LONG, ROWS)[0]).max() < 1e-6


def test_wrong_rows_of_one_length_are_mended_alone(tmp_path: Path) -> None:
    cos, sin = concatenated()
    cos[LIMIT:], sin[LIMIT:] = table(SHORT, ROWS)
    pack = pack_of(tmp_path / "p", form="rotary_embedding", tables=(cos, sin), change=shift)
    assert codes(check(pack)) == ["RPE001"]
    patched = patch(pack, tmp_path / "out")
    assert sum(edit.length for edit in patched.edits) == 2 * ROWS * PAIRS * 4
    report = check(tmp_path / "out")
    assert (report.verdict, lengths(report)) == ("ok", {True: ROWS, False: LIMIT})


def test_padding_stays_as_it_is(tmp_path: Path) -> None:
    """Of a padded short table only the rows that short calls read are judged and mended."""

    def change(model: onnx.ModelProto) -> None:
        two_ifs(model)
        for choice in [n for n in model.graph.node if n.op_type == "If"]:
            stored = branch_of(choice, "else_branch")[0].attribute[0].t
            values = numpy_helper.to_array(stored).copy()
            values[3] = 0.5
            stored.CopyFrom(numpy_helper.from_array(values, "t"))

    pack = pack_of(tmp_path / "p", form="gqa", change=change)
    assert codes(check(pack)) == ["RPE001"]
    patched = patch(pack, tmp_path / "out")
    assert sum(edit.length for edit in patched.edits) == 2 * LIMIT * PAIRS * 4
    assert check(tmp_path / "out").verdict == "ok"


def test_a_condition_that_is_not_the_length_is_refused(tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        one_if(model)
        (shape,) = [n for n in model.graph.node if "mask_dims" in n.output]
        shape.input[0] = "input_ids"

    report = check(pack_of(tmp_path / "p", form="gqa", change=change))
    assert report.verdict == "unsupported"
    assert "not the total length" in report.findings[0].message


def test_rows_shifted_by_another_number(tmp_path: Path) -> None:
    """Positions that jump to the wrong row read a table that is not theirs."""
    pack = pack_of(
        tmp_path / "p", form="rotary_embedding", tables=concatenated(),
        change=partial(shift, rows=LIMIT + 8),
    )  # fmt: skip
    report = check(pack)
    assert report.verdict == "mismatch"
    assert "RPE001" in codes(report)
    assert "RPE009" in codes(report)
