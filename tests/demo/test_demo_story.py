"""`packimport demo` as a whole: what it proves, what it prints, what it leaves."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import packimport
from packimport.demo import pack, story
from packimport.demo.reference import load_reference
from packimport.demo.story import Outcome, play, run
from packimport.errors import ContainerError, DependencyError


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[Outcome, list[str], Path]:
    folder = tmp_path_factory.mktemp("demo") / "kept"
    texts: list[str] = []
    outcome = play(folder, texts.append)
    return outcome, "\n".join(texts).splitlines(), folder


def test_the_fault_is_found(kept: tuple[Outcome, list[str], Path]) -> None:
    report = kept[0].checked
    (site,) = report.sites
    assert report.verdict == "mismatch"
    assert site.measurement.baked_as == "default"
    assert site.measurement.wrong_pairs == 12
    assert site.measurement.max_ratio == pytest.approx(32, rel=1e-5)


def test_the_angle_error_is_that_of_transformers(kept: tuple[Outcome, list[str], Path]) -> None:
    """Against transformers 5.24.0's frequencies and the formula of the plain ones."""
    plain = 100000.0 ** -(np.arange(0, 32, 2) / 32)
    gap = np.abs(plain - load_reference().inv_freq).max()
    (site,) = kept[0].checked.sites
    assert dict(site.measurement.angle_error)[128] == pytest.approx(128 * gap, rel=1e-4)


def test_the_fault_grows_with_the_position(kept: tuple[Outcome, list[str], Path]) -> None:
    """Each range is worse than the one before it, and the first one hides the fault."""
    means = [bucket.kl_mean for bucket in kept[0].before.buckets]
    assert means == sorted(means)
    assert kept[0].before.buckets[0].same_top1 == 1.0
    assert kept[0].before.buckets[-1].same_top1 < 0.7
    assert kept[0].before.overall.kl_mean > 0.1


def test_the_mended_pack_gives_the_logits_of_transformers(
    kept: tuple[Outcome, list[str], Path],
) -> None:
    """transformers 5.24.0: the limit is that of a real pack, the noise is far below it."""
    after = kept[0].after.overall
    assert kept[0].rechecked.verdict == "ok"
    assert after.kl_mean <= 1e-10
    assert after.same_top1 == 1.0
    assert after.max_difference < 2e-5
    assert kept[0].proved


def test_only_the_bytes_of_the_table_differ(kept: tuple[Outcome, list[str], Path]) -> None:
    faulty, mended = kept[2] / story.FAULTY, kept[2] / story.MENDED
    names = {path.name for path in faulty.iterdir()}
    assert {path.name for path in mended.iterdir()} == names | {"packimport.json"}
    for name in names - {pack.DATA}:
        assert (faulty / name).read_bytes() == (mended / name).read_bytes()
    old, new = (faulty / pack.DATA).read_bytes(), (mended / pack.DATA).read_bytes()
    offset = 0
    for name, value in pack.tensors().items():
        same = old[offset : offset + value.nbytes] == new[offset : offset + value.nbytes]
        assert same == (name not in {"cos_cache", "sin_cache"}), name
        offset += value.nbytes


def test_the_text_fits_a_terminal_and_says_what_comes_next(
    kept: tuple[Outcome, list[str], Path],
) -> None:
    lines = [line for line in kept[1] if str(kept[2]) not in line]
    assert max(map(len, lines)) <= story.WIDTH
    assert not [line for line in lines if line != line.rstrip()]
    assert "\n".join(lines).isascii()
    text = "\n".join(lines)
    assert "faulty: mismatch" in text
    assert "mended: ok" in text
    assert "transformers 5.24.0" in text
    assert "Proved: " in text
    assert lines[-1].strip().startswith("packimport patch CONTAINER -o OUT")


def test_it_says_where_the_packs_are_kept(kept: tuple[Outcome, list[str], Path]) -> None:
    assert f"Both packs are kept in {kept[2]}" in kept[1]
    assert packimport.check(kept[2] / story.FAULTY).verdict == "mismatch"


def test_without_keep_nothing_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert run(None, lambda _: None) == 0
    assert not list(tmp_path.iterdir())


def test_a_folder_that_exists_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ContainerError, match="does not exist yet"):
        run(tmp_path, lambda _: None)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("keep", [False, True])
def test_without_onnxruntime_it_says_what_to_install(
    keep: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    printed: list[str] = []
    with pytest.raises(DependencyError, match=r"pip install onnxruntime"):
        run(tmp_path / "kept" if keep else None, printed.append)
    assert printed == []
    assert not list(tmp_path.iterdir())


def test_a_patch_that_mends_nothing_is_not_a_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """A patch replaced by a copy: the demo prints so and does not exit 0."""

    def copy(source: Path, out: Path) -> None:
        out.mkdir()
        for path in source.iterdir():
            (out / path.name).write_bytes(path.read_bytes())

    monkeypatch.setattr(packimport, "patch", copy, raising=False)
    printed: list[str] = []
    assert run(None, printed.append) == 4
    assert "NOT PROVED" in "\n".join(printed)
