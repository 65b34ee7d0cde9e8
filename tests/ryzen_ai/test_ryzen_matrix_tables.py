"""The tables that the tests of Ryzen AI take for right are those of transformers 5.24.0."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ryzen_tables
from numpy.typing import NDArray
from ryzen_tables import FAULTS, LLAMA3, YARN

DATA = Path(__file__).parent.parent / "data"
Row = tuple[str, dict[str, Any], dict[str, Any], NDArray[np.float64], float]


def rows(kinds: set[str]) -> Iterator[Row]:
    """Model, its RoPE block, its config, inv_freq and attention factor, of some types."""
    text = (DATA / "rope_configs.json").read_text(encoding="utf-8")
    configs = {row["model"]: row["config"] for row in json.loads(text)}
    results = json.loads((DATA / "rope_reference.json").read_text(encoding="utf-8"))["results"]
    for result in results:
        block, table = result.get("rope_parameters"), result.get("tables", {}).get("all")
        if table is None or block.get("rope_type") not in kinds:
            continue
        config = configs[result["model"]]
        values = np.array([float.fromhex(x) for x in table["inv_freq_hex"]])
        yield (
            result["model"], block, config.get("text_config", config), values,
            table["attention_scaling"],
        )  # fmt: skip


def test_default_and_llama3() -> None:
    seen = set()
    for model, block, _, inv_freq, attention in rows({"default", "llama3"}):
        theta = block["rope_theta"]
        made = ryzen_tables.default(len(inv_freq), theta)
        if block["rope_type"] == "llama3":
            made = ryzen_tables.llama3(
                len(inv_freq), theta, block["factor"], block["original_max_position_embeddings"],
                block["low_freq_factor"], block["high_freq_factor"],
            )  # fmt: skip
        assert np.allclose(made, inv_freq, rtol=2e-6, atol=0), model
        assert attention == 1
        seen.add(block["rope_type"])
    assert seen == {"default", "llama3"}


def test_yarn() -> None:
    count = 0
    for model, block, config, inv_freq, attention in rows({"yarn"}):
        original = block["original_max_position_embeddings"]
        factor = block.get("factor") or config["max_position_embeddings"] / original
        made = ryzen_tables.yarn(
            len(inv_freq), block["rope_theta"], factor, original,
            fast=block.get("beta_fast") or 32, slow=block.get("beta_slow") or 1,
            truncate=block.get("truncate", True),
        )  # fmt: skip
        assert np.allclose(made, inv_freq, rtol=1e-5, atol=0), model
        if not block.keys() & {"attention_factor", "mscale", "mscale_all_dim"}:
            assert ryzen_tables.yarn_attention(factor) == pytest.approx(attention), model
            count += 1
    assert count


def test_longrope() -> None:
    count = 0
    for model, block, config, inv_freq, attention in rows({"longrope"}):
        made = ryzen_tables.longrope(len(inv_freq), block["rope_theta"], block["short_factor"])
        assert np.allclose(made, inv_freq, rtol=2e-6, atol=0), model
        original = config.get("original_max_position_embeddings") or block.get(
            "original_max_position_embeddings"
        )
        longest = config["max_position_embeddings"]
        if "attention_factor" not in block and "short_mscale" not in block:
            expected = ryzen_tables.longrope_attention(longest, original)
            assert expected == pytest.approx(attention), model
            count += 1
    assert count


@pytest.mark.parametrize("name", sorted(FAULTS))
def test_every_fault_is_one(name: str) -> None:
    declared, fault = FAULTS[name]
    wrong, right = fault(declared, 512), declared.right(512)
    apart = max(
        np.abs(np.nan_to_num(w, nan=9.0) - r).max() for w, r in zip(wrong, right, strict=True)
    )
    assert apart > 0.02


def test_the_declared_schedules_differ_from_their_faults() -> None:
    longest, rows_ = LLAMA3.config["max_position_embeddings"], 512
    wrong = ryzen_tables.llama3_with_the_longest_as_original(LLAMA3, rows_)
    plain = ryzen_tables.plain_instead(LLAMA3, rows_)
    assert longest == 4096
    assert np.abs(wrong[0] - plain[0]).max() > 0.1
    assert YARN.attention == pytest.approx(1.138629, abs=1e-6)
