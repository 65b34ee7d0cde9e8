"""reference.npz: made by transformers, and far enough from ties to be compared."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from packimport.demo import model, reference
from packimport.demo.reference import load_reference, read_reference


def test_it_was_made_by_the_versions_that_the_docs_name() -> None:
    stored = load_reference()
    assert stored.made_by.startswith("transformers 5.24.0, torch 2.13.0")
    assert stored.logits.shape == (model.TOKENS, model.VOCAB)
    assert stored.logits.dtype == np.float32


def test_it_is_small() -> None:
    assert Path(reference.__file__).with_name("reference.npz").stat().st_size < 300_000


def test_no_position_is_near_a_tie() -> None:
    """Argmax agreement of 100 % may be asked for: noise is below 1e-5, margins are not."""
    best = np.sort(load_reference().logits, axis=-1)
    assert (best[:, -1] - best[:, -2]).min() > 1e-3


def test_most_pairs_differ_from_plain_ones() -> None:
    """Plain frequencies, theta^(-2i/d), from the paper that defines RoPE (arXiv 2104.09864)."""
    plain = model.THETA ** -(np.arange(0, model.HEAD_DIM, 2) / model.HEAD_DIM)
    ratio = plain / load_reference().inv_freq
    assert (np.abs(ratio - 1) > 1e-3).sum() == 12
    assert ratio.max() == pytest.approx(32, rel=1e-6)


@pytest.mark.oracle
def test_transformers_makes_it_again(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    out = tmp_path / "again.npz"
    subprocess.run([sys.executable, "-m", "packimport.demo.make_reference", str(out)], check=True)
    again, stored = read_reference(out.read_bytes()), load_reference()
    assert np.array_equal(again.tokens, stored.tokens)
    assert np.abs(again.logits - stored.logits).max() <= 2e-5
    # Between CPUs llama3 frequencies differ by up to 18 ulp of float32.
    np.testing.assert_allclose(again.inv_freq, stored.inv_freq, rtol=18 * 2**-23, atol=0)
