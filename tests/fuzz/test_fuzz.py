"""A short run of the fuzzing, and every input that it ever found."""

from __future__ import annotations

import contextlib
import random
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutations import mutated
from run import NAMES
from targets import Target, targets

from packimport.errors import PackimportError

# TARGET-what.bin: inputs that once raised an error of another kind, or asked for gigabytes.
CORPUS = sorted((Path(__file__).parent / "corpus").glob("*.bin"))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@pytest.fixture(scope="module")
def known(place: Path) -> dict[str, Target]:
    return targets(place)


def folder_of(place: Path, name: str) -> Path:
    folder = place / name
    folder.mkdir(exist_ok=True)
    (folder / "genai_config.json").write_bytes(b"{}")
    return folder


def test_every_target_has_a_name(known: dict[str, Target]) -> None:
    assert set(known) == set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_the_seeds_are_read(name: str, known: dict[str, Target], place: Path) -> None:
    for seed in known[name].seeds:
        known[name].read(folder_of(place, name), seed)


@pytest.mark.parametrize("name", NAMES)
@given(number=st.integers(0, 2**32))
@settings(
    max_examples=50,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_a_mutated_input_is_read_or_refused(
    name: str, number: int, known: dict[str, Target], place: Path
) -> None:
    rng = random.Random(number)
    target = known[name]
    data = mutated(rng.choice(target.seeds), target.seeds, rng)
    with contextlib.suppress(PackimportError):
        target.read(folder_of(place, name), data)


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_what_was_found_is_read_or_refused(
    path: Path, known: dict[str, Target], place: Path
) -> None:
    name = path.name.split("-")[0]
    with contextlib.suppress(PackimportError):
        known[name].read(folder_of(place, name), path.read_bytes())
