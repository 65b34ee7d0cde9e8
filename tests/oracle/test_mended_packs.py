"""Packs of real exporters whose graph has to be changed, mended, against transformers 5.24.0."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from mending.mended import run
from mending.test_smollm3 import mean_kl
from oracle.exporters import CURRENT, build, old_python, save_model

from packimport import check, patch

pytestmark = pytest.mark.oracle

# Builder 0.11.2 does not see the partial factor where transformers 5 saved the config.
PARTIAL = {
    "hidden_size": 256,
    "head_dim": 64,
    "max_position_embeddings": 1024,
    "rope_parameters": {
        "rope_type": "default",
        "rope_theta": 10000.0,
        "partial_rotary_factor": 0.25,
    },
}


# The builder has 1e-6 for Nemotron's norms, whatever the config says.
NORMS = {"Nemotron": {"norm_eps": 1e-6}, "Phi": {}}


@pytest.mark.parametrize("kind", sorted(NORMS))
def test_a_lost_partial_factor(tmp_path: Path, kind: str) -> None:
    import torch
    import transformers

    python = old_python()
    if python is None:
        pytest.skip("PACKIMPORT_OLD_BUILDER names no interpreter with builder 0.11.2")
    model = save_model(CURRENT, tmp_path / "model", **PARTIAL, **NORMS[kind], **{"class": kind})
    pack = build(python, model, tmp_path / "pack")
    assert [f.code for f in check(pack, config=model).findings] == ["RPE008"]
    patched = patch(pack, tmp_path / "out", config=model)
    assert {record.change for record in patched.graph_changes} == {"1024 x 16 becomes 1024 x 8"}
    loaded = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    tokens = np.random.default_rng(0).integers(3, 512, 400)
    for count in (24, 400):
        with torch.no_grad():
            expected = loaded(torch.tensor(tokens[None, :count])).logits[0].numpy()
        # Ten times what a right pack of a tiny model shows.
        assert mean_kl(expected, run(tmp_path / "out", tokens[:count], 4)) < 3e-6
        assert mean_kl(expected, run(pack, tokens[:count])) > 1e-5
