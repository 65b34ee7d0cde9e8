"""The text of a report: what holds of several tables is said once, and nothing is lost."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from builders import plain, tiny_pack
from ryzen_packs import build
from ryzen_tables import LLAMA3, llama3_with_the_longest_as_original, plain_instead

from packimport import check
from packimport.audit.report import Report
from packimport.wrapping import wrapped

ROWS = 256
PACKS = Path(__file__).parent.parent / "packs"


@pytest.fixture(scope="module")
def both_wrong(tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Two branches with the same fault, in tables of two dtypes."""
    pack = build(
        "npu 1.6", tmp_path_factory.mktemp("wrong") / "p", LLAMA3,
        tables=plain_instead(LLAMA3, ROWS),
    )  # fmt: skip
    return check(pack.path, pack.config)


def values(text: str, name: str) -> list[str]:
    """What stands behind a name in the lines of a text."""
    start = f"    {name:<12}"
    return [line.removeprefix(start) for line in text.splitlines() if line.startswith(start)]


def test_what_holds_of_both_tables_is_said_once(both_wrong: Report) -> None:
    text = both_wrong.text()
    for name in ("declared", "baked as", "fault", "wrong pairs", "angle off"):
        assert len(values(text, name)) == 1, name
    assert text.count("first beyond 0.1 rad") == 1
    first, second = both_wrong.sites
    assert values(text, "serves") == [
        f"{site.form} in layers 0-2; {site.dtype}, {ROWS} rows x {site.pairs} pairs"
        for site in (first.site, second.site)
    ]
    assert values(text, "in") == [first.site.branch, second.site.branch]
    # The names of both, what is each one's own, and then what is both's.
    head = text.split("  both:\n")[0]
    assert all(f": {judged.site.names}\n" in head for judged in both_wrong.sites)
    assert not values(head, "declared")


def test_the_json_has_every_site_and_finding_apart(both_wrong: Report) -> None:
    whole = both_wrong.to_dict()
    sites, findings = whole["sites"], whole["findings"]
    assert isinstance(sites, list)
    assert isinstance(findings, list)
    assert [site["baked_as"] for site in sites] == ["default", "default"]
    assert len([item for item in findings if item["code"] == "RPE001"]) == 2


def test_a_finding_of_several_places_is_said_once_with_all_of_them(both_wrong: Report) -> None:
    text = both_wrong.text()
    assert text.count("error RPE001") == 1
    (item,) = [part for part in text.split("\n\n") if "error RPE001" in part]
    first, second = (f for f in both_wrong.findings if f.code == "RPE001")
    assert f"    where       {first.graph}, {first.where};\n" in item
    # Folded at 80 columns the places still part.
    assert f"                {second.graph}, {second.where}\n" in item
    assert wrapped(item, 80).count(";") == 1


def test_the_rounding_of_right_tables_is_each_ones_own(tmp_path: Path) -> None:
    pack = build("npu 1.6", tmp_path / "p", LLAMA3, tables=LLAMA3.right(ROWS))
    report = check(pack.path, pack.config)
    text = report.text()
    assert report.verdict == "ok"
    errors = [judged.measurement.max_abs_cos_error for judged in report.sites]
    # Half an ulp below 1, 2^-12 in float16 and 2^-9 in bfloat16, and the room for float32 angles.
    assert errors == pytest.approx([2.0**-12, 2.0**-9], rel=0.2)
    head, common = text.split("  both:\n")
    assert [line.split(",")[0] for line in values(head, "max error")] == [
        f"cos {error:.2g}" for error in errors
    ]
    assert not values(common, "max error")
    assert values(text, "wrong pairs") == [f"0 of {report.sites[0].site.pairs}"]


def test_tables_with_other_faults_are_told_apart(tmp_path: Path) -> None:
    pack = build(
        "npu 1.6", tmp_path / "p", LLAMA3,
        tables=plain_instead(LLAMA3, ROWS),
        token_tables=llama3_with_the_longest_as_original(LLAMA3, ROWS),
    )  # fmt: skip
    text = check(pack.path, pack.config).text()
    assert len(values(text, "declared")) == len(values(text, "baked as")) == 2
    assert "  both:" not in text


def test_tables_for_two_lengths_of_call() -> None:
    text = check(PACKS / "oga-0.18.0-longrope-dml").text()
    assert values(text, "for") == ["calls up to 256 tokens", "calls above 256 tokens"]
    assert len(values(text, "declared")) == len(values(text, "max error")) == 1


def test_more_than_two(tmp_path: Path) -> None:
    report = check(tiny_pack(tmp_path / "p", rows=ROWS, tables=plain(ROWS, 8)))
    (judged,) = report.sites
    assert "all" not in report.text()
    text = replace(report, sites=(judged,) * 3).text()
    assert "\n  all 3:\n    declared    " in text
    assert len(values(text, "serves")) == 3
