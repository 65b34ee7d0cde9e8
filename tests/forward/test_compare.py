"""Two dumps of the same tokens: buckets, phases, gates, JSON, memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from processes import PEAK

from forward import stretch as stretch_module
from forward.compare import compare
from forward.comparison import SCHEMA, refusal
from forward.dump import Dump
from forward.figures import Figures, quantile
from forward.statistics import row_figures
from forward.three import Three
from packimport.errors import DumpError, UsageError
from packimport.pack.documents import validate


def dump(name: str, logits: NDArray[Any], *, prefill: int | None = None, first: int = 0) -> Dump:
    count = len(logits)
    tokens = np.arange(first, first + count) % logits.shape[1]
    rows = logits.astype(np.float32)
    return Dump(
        name=name, tokens=tokens, logits=rows, prefill=count if prefill is None else prefill
    )


def pair(count: int = 1100, vocab: int = 40, prefill: int | None = None) -> tuple[Dump, Dump]:
    rng = np.random.default_rng(3)
    x = rng.normal(0, 3, (count, vocab))
    y = x + rng.normal(0, 1, x.shape) * np.linspace(0, 1, count)[:, None]
    return dump("reference", x), dump("run", y, prefill=prefill)


def test_figures_are_those_of_the_rows() -> None:
    reference, run = pair()
    rows = row_figures(reference.logits[:], run.logits[:])
    comparison = compare(reference, run)
    whole = comparison.overall
    assert (comparison.vocab, whole.start, whole.stop) == (40, 0, 1100)
    assert whole.kl_mean == pytest.approx(rows.kl.mean(), abs=1e-15)
    assert whole.kl_median == pytest.approx(np.median(rows.kl), abs=1e-15)
    assert whole.kl_p99 == pytest.approx(np.quantile(rows.kl, 0.99), abs=1e-15)
    assert (whole.kl_max, whole.kl_max_position) == (rows.kl.max(), rows.kl.argmax())
    assert whole.same_top1 == rows.same_top1.mean()
    assert whole.max_difference == rows.difference.max()
    assert whole.max_difference_position == rows.difference.argmax()
    assert whole.max_difference_token == rows.token[rows.difference.argmax()]
    x, y = reference.logits[:].ravel(), run.logits[:].ravel()
    assert comparison.correlation == pytest.approx(np.corrcoef(x, y)[0, 1], abs=1e-6)


def test_buckets_hold_every_position_once() -> None:
    reference, run = pair()
    kl = row_figures(reference.logits[:], run.logits[:]).kl
    buckets = compare(reference, run).buckets
    assert [(b.name, b.start, b.stop) for b in buckets] == [
        ("0-127", 0, 128),
        ("128-511", 128, 512),
        ("512-1023", 512, 1024),
        ("1024-2047", 1024, 1100),
    ]
    for b in buckets:
        assert b.kl_mean == pytest.approx(kl[b.start : b.stop].mean(), abs=1e-15)
        assert b.start <= b.kl_max_position < b.stop
        assert kl[b.kl_max_position] == b.kl_max


@pytest.mark.parametrize(
    ("count", "names"),
    [
        (1, ["0-127"]),
        (128, ["0-127"]),
        (129, ["0-127", "128-511"]),
        (4097, ["0-127", "128-511", "512-1023", "1024-2047", "2048-4095", "4096-8191"]),
    ],
)
def test_bucket_edges(count: int, names: list[str]) -> None:
    logits = np.random.default_rng(0).normal(size=(count, 2))
    one = dump("a", logits)
    assert [b.name for b in compare(one, one).buckets] == names


def test_phases_where_the_run_has_both() -> None:
    reference, run = pair(count=100, prefill=90)
    kl = row_figures(reference.logits[:], run.logits[:]).kl
    prefill, decode = compare(reference, run).phases
    assert (prefill.name, prefill.stop, decode.name, decode.start) == ("prefill", 90, "decode", 90)
    assert decode.kl_mean == pytest.approx(kl[90:].mean(), abs=1e-15)
    for count in (0, 100):
        assert compare(*pair(count=100, prefill=count)).phases == ()


@pytest.mark.parametrize(("block", "stretch"), [(40 * 7, 40 * 300), (40 * 7, 40 * 21), (1, 1)])
def test_the_size_of_a_block_does_not_matter(
    block: int, stretch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference, run = pair(count=300, prefill=200)
    whole = compare(reference, run)
    monkeypatch.setattr(stretch_module, "_BLOCK", block)
    monkeypatch.setattr(stretch_module, "_ENTRIES", stretch)
    parts = compare(reference, run)
    assert parts.overall == whole.overall
    assert parts.buckets == whole.buckets
    assert parts.correlation == pytest.approx(whole.correlation, abs=1e-14)


def test_other_tokens_are_an_error_not_a_number() -> None:
    logits = np.zeros((4, 3)) + np.arange(3)
    with pytest.raises(DumpError, match=r"run: .*different tokens from position 0 on.*found 1"):
        compare(dump("reference", logits), dump("run", logits, first=1))


def test_a_prefix_is_an_error() -> None:
    logits = np.zeros((4, 3)) + np.arange(3)
    with pytest.raises(DumpError, match=r"run: .*different tokens; found 3 tokens; allowed: 4"):
        compare(dump("reference", logits), dump("run", logits[:3]))


def test_another_vocabulary_is_an_error() -> None:
    with pytest.raises(DumpError, match="different sizes; found 4; allowed: 3, as in reference"):
        compare(dump("reference", np.ones((2, 3))), dump("run", np.ones((2, 4))))


def test_nan_is_an_error_at_its_position() -> None:
    reference, run = pair(count=600)
    run.logits[:][555, 3] = np.nan
    with pytest.raises(DumpError, match="the run's logits have no softmax at position 555"):
        compare(reference, run)


@pytest.mark.parametrize("share", [0.0, 0.25, 0.5, 0.99, 1.0])
@pytest.mark.parametrize("count", [1, 2, 101, 1500])
def test_quantile_is_numpys(share: float, count: int) -> None:
    ordered = np.sort(np.random.default_rng(count).exponential(size=count))
    assert quantile(ordered, share) == pytest.approx(np.quantile(ordered, share), rel=1e-14)


def test_quantiles_of_infinite_numbers() -> None:
    ordered = np.array([0.0, 1.0, np.inf])
    assert quantile(ordered, 0.5) == 1.0
    assert quantile(ordered, 0.75) == np.inf
    assert quantile(np.array([np.inf, np.inf]), 0.5) == np.inf


@pytest.mark.parametrize(
    ("kl", "top1", "passed"),
    [(None, None, True), (1.0, 0.0, True), (1e-9, 0.0, False), (1.0, 1.0, False)],
)
def test_gates(kl: float | None, top1: float | None, passed: bool) -> None:
    comparison = compare(*pair()).held_to(kl, top1)
    assert comparison.passed is passed
    validate(comparison.to_dict(), SCHEMA, "comparison")
    assert ("FAILED" in comparison.text()) is not passed


def test_a_gate_is_passed_at_its_limit() -> None:
    comparison = compare(*pair())
    mean, top1 = comparison.overall.kl_mean, comparison.overall.same_top1
    assert comparison.held_to(mean, top1).passed
    assert not comparison.held_to(np.nextafter(mean, 0), None).passed
    assert not comparison.held_to(None, np.nextafter(top1, 1)).passed


def test_json_obeys_its_schema_with_infinity_and_null() -> None:
    hole = np.array([[0.0, 1.0, 2.0], [0.0, 1.0, -np.inf]])
    value = compare(dump("a", hole[:1].repeat(2, 0)), dump("b", hole)).to_dict()
    validate(json.loads(json.dumps(value, allow_nan=False)), SCHEMA, "comparison")
    assert value["overall"]["kl_mean"] == "Infinity"  # type: ignore[index]  # a JSON object
    flat = compare(dump("a", np.ones((2, 3))), dump("b", np.ones((2, 3)))).to_dict()
    validate(flat, SCHEMA, "comparison")
    assert flat["correlation"] is None
    validate(refusal(DumpError("no", place="x")), SCHEMA, "comparison")


def test_text_shows_every_part() -> None:
    lines = compare(*pair(prefill=1000)).held_to(1.0, None).text().splitlines()
    starts = [line.split()[0] for line in lines if line]
    for word in ("reference", "run", "all", "prefill", "decode", "0-127", "1024-2047", "passed:"):
        assert word in starts


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_memory_is_that_of_a_few_blocks(tmp_path: Path) -> None:
    """Two dumps of 77 MB each are compared in a process that grows by less than 100 MB."""
    count, vocab = 150, 128256
    for name in ("a.f4", "b.f4"):
        with (tmp_path / name).open("wb") as file:
            file.truncate(4 * count * vocab)
    script = f"""
import sys
from pathlib import Path
import numpy as np
from forward.compare import compare
from forward.dump import Dump, NpyRows
def dump(name):
    rows = NpyRows(Path(sys.argv[1]) / name, ({count}, {vocab}), 0)
    return Dump(name=name, tokens=np.arange({count}), logits=rows, prefill={count})
before = peak()
assert compare(dump("a.f4"), dump("b.f4")).overall.kl_max == 0.0
print(peak() - before)
"""
    command = [sys.executable, "-c", PEAK + script, str(tmp_path)]
    root = Path(__file__).parent.parent.parent
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root)
    assert int(done.stdout) < 100 << 20


@pytest.mark.parametrize("by_bucket", [False, True])
@pytest.mark.parametrize(
    ("name", "limit"), [("max_kl", 0.2), ("max_kl_p999", 0.5), ("min_top1", 0.8), ("max_kl", 9.0)]
)
def test_limits_by_bucket(name: str, limit: float, by_bucket: bool) -> None:
    """The noise of `pair` grows with the position."""
    reference, run = pair()
    rows = row_figures(reference.logits[:], run.logits[:])
    spans = {"all": (0, 1100), "0-127": (0, 128), "128-511": (128, 512)}
    spans |= {"512-1023": (512, 1024), "1024-2047": (1024, 1100)}
    broken = {
        "max_kl": lambda low, high: rows.kl[low:high].mean() > limit,
        "max_kl_p999": lambda low, high: np.quantile(rows.kl[low:high], 0.999) > limit,
        "min_top1": lambda low, high: rows.same_top1[low:high].mean() < limit,
    }[name]
    expected = [span for span, ends in spans.items() if broken(*ends)]
    assert (limit == 9.0) == (expected == [])
    held = compare(reference, run).held_to(**{name: limit}, by_bucket=by_bucket)
    validate(held.to_dict(), SCHEMA, "comparison")
    failed = [gate.range for gate in held.gates if not gate.passed]
    assert failed == [span for span in expected if by_bucket or span == "all"]
    assert len(held.gates) == (5 if by_bucket else 1)
    assert [f" at {span} " in held.text() for span in failed] == [s != "all" for s in failed]


def kl_p999(figures: Figures) -> float:
    return figures.kl_p999


def other_top1(figures: Figures) -> float:
    return 1 - figures.same_top1


@pytest.mark.parametrize("by_bucket", [False, True])
@pytest.mark.parametrize(
    ("name", "value"), [("max_floor_p999", kl_p999), ("max_floor_top1", other_top1)]
)
def test_other_figures_in_multiples_of_the_floors(
    name: str, value: Callable[[Figures], float], by_bucket: bool
) -> None:
    reference, run = pair()
    rng = np.random.default_rng(9)
    noise = rng.normal(0, 0.3, (1100, 40)).astype(np.float32)
    floor = compare(reference, replace(run, logits=reference.logits[:] + noise))
    comparison = compare(reference, run).over(floor)
    times = [value(a) / value(b) for a, b in zip(comparison.ranges, floor.ranges, strict=True)]
    most = max(times) if by_bucket else times[0]
    for limit, passed in ((most * 1.001, True), (most * 0.999, False)):
        held = comparison.held_to(**{name: limit}, by_bucket=by_bucket)
        assert held.passed is passed
        validate(held.to_dict(), SCHEMA, "comparison")
        assert [gate.passed for gate in held.gates].count(False) == (not passed)
        assert "against the floor" in held.text()
    with pytest.raises(UsageError, match="--floor DUMP"):
        compare(reference, run).held_to(**{name: 2.0})


def test_a_floor_and_its_multiple() -> None:
    reference, run = pair()
    rng = np.random.default_rng(9)
    noise = rng.normal(0, 0.05, (1100, 40)).astype(np.float32)
    floor = compare(reference, replace(run, name="half", logits=reference.logits[:] + noise))
    comparison = compare(reference, run).over(floor)
    times = comparison.overall.kl_mean / floor.overall.kl_mean
    assert comparison.held_to(max_floor=times * 1.001).passed
    assert not comparison.held_to(max_floor=times * 0.999).passed
    gate = comparison.held_to(max_floor=2.0).gates[0]
    assert (gate.name, gate.limit) == ("max_floor", 2 * floor.overall.kl_mean)
    value: Any = comparison.to_dict()
    validate(value, SCHEMA, "comparison")
    assert value["floor"]["overall"]["kl_mean"] == floor.overall.kl_mean
    assert "floor        half" in comparison.text()
    with pytest.raises(UsageError, match="--floor DUMP"):
        compare(reference, run).held_to(max_floor=2.0)
    with pytest.raises(DumpError, match="the dump has other positions than run"):
        compare(reference, run).over(compare(*pair(count=900)))


def test_three() -> None:
    reference, run = pair()
    half = (reference.logits[:] + run.logits[:]) / 2
    after = compare(reference, replace(run, name="mended", logits=half), (1024,))
    three = Three(before=compare(reference, run, (1024,)), after=after.held_to(max_kl=0.2))
    validate(three.to_dict(), SCHEMA, "three")
    assert three.passed
    with pytest.raises(DumpError, match="the dump has other positions than run"):
        Three(before=three.before, after=compare(*pair(count=900)))
    assert not replace(three, after=after.held_to(max_kl=1e-9)).passed
    lines = three.text().splitlines()
    row = next(line for line in lines if line.startswith("all "))
    for whole in (three.before.overall, after.overall):
        assert f"{whole.kl_mean:.2e}  {whole.errors['kl_mean']:.1e}" in row
    names = ["1024-2047", "before", "from"]
    assert [line.split()[0] for line in lines if "1024" in line] == 2 * names
    assert max(map(len, lines)) <= 80
    assert lines[lines.index("limits, of after") + 1].startswith("passed: mean KL")


def test_three_show_the_lines_of_two_in_their_order() -> None:
    reference, run = pair(prefill=900)
    before, after = compare(reference, run, (1024,)), compare(reference, run, (1024,))
    names = [figures.name for figures in before.parts]
    assert names[:3] == ["all", "prefill", "decode"]

    def shown(text: str) -> list[str]:
        blocks = [block.splitlines() for block in text.split("\n\n")[1:3]]
        assert all(len(line) <= 80 for block in blocks for line in block)
        return [line[:13].strip() for line in blocks[0] if not line.startswith(" ")]

    assert shown(Three(before=before, after=after).text()) == names
    assert shown(before.text()) == names
    other = compare(reference, replace(run, prefill=895), (1024,))
    text = Three(before=before, after=other).text()
    assert shown(text) == [name for name in names if name not in {"prefill", "decode"}]
    assert "not shown    prefill, decode: other positions before than after" in text


class Words:
    """Stands for a tokenizer: token 3 is " w3", and one token is a bell."""

    def decode_all(self, texts: Any) -> list[str]:
        return ["".join("\a" if i == 7 else f" w{i}" for i in ids) for ids in texts]


def test_worst_positions() -> None:
    reference, run = pair(count=60)
    found = compare(reference, run, worst_count=3)
    kl = row_figures(reference.logits[:], run.logits[:]).kl
    assert [place.position for place in found.worst] == np.argsort(-kl)[:3].tolist()
    place = found.worst[0]
    context = range(max(0, place.position - 15), place.position + 1)
    assert place.tokens == tuple(i % 40 for i in context)
    assert place.reference_top == reference.logits[:][place.position].argmax()
    assert place.run_top == run.logits[:][place.position].argmax()
    validate(found.to_dict(), SCHEMA, "comparison")
    decoded = found.decoded(Words())  # type: ignore[arg-type]  # what is used of one
    validate(decoded.to_dict(), SCHEMA, "comparison")
    text = decoded.text()
    assert f'run " w{place.run_top}"' in text
    assert "\a" not in text
    assert len(compare(reference, run, worst_count=100).worst) == 60


def test_tokens_outside_the_vocabulary_are_refused() -> None:
    reference, run = pair(count=4)
    tokens = np.array([0, 1, 40, 2])
    with pytest.raises(DumpError, match="position 2 is not in the vocabulary of the logits"):
        compare(replace(reference, tokens=tokens), replace(run, tokens=tokens))
