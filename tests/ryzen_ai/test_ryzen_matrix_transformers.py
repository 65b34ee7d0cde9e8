"""The tables that the tests of Ryzen AI take for right, against transformers 5.24.0 itself."""

from __future__ import annotations

import numpy as np
import pytest
import ryzen_tables
from ryzen_tables import Declared

pytestmark = pytest.mark.oracle

DECLARED = {name: getattr(ryzen_tables, name) for name in ("PLAIN", "LLAMA3", "YARN", "LONGROPE")}


@pytest.mark.parametrize("name", sorted(DECLARED))
def test_right_tables_are_those_of_the_model(name: str) -> None:
    import torch
    import transformers
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    declared: Declared = DECLARED[name]
    settings = {**declared.config, "head_dim": 64, "hidden_size": 128, "num_attention_heads": 2}
    config = transformers.AutoConfig.for_model(**settings)
    config.head_dim = 64  # not every class of configs has it
    module = LlamaRotaryEmbedding(config)
    rows = ryzen_tables.ORIGINAL  # longrope has the short list up to here
    cos, sin = module(torch.zeros(1, 1, 1), torch.arange(rows)[None])
    tolerance = 1e-6 + np.outer(np.arange(rows), declared.inv_freq) * 2.0**-21
    for theirs, mine in zip((cos, sin), declared.right(rows), strict=True):
        values = theirs[0, :, : declared.pairs].double().numpy()
        assert (np.abs(values - mine) <= tolerance).all()
        assert np.abs(mine).max() == pytest.approx(declared.attention, rel=1e-3)


def test_the_long_list_of_longrope() -> None:
    import torch
    import transformers
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    declared = ryzen_tables.LONGROPE
    settings = {**declared.config, "hidden_size": 128, "num_attention_heads": 2}
    config = transformers.AutoConfig.for_model(**settings)
    config.head_dim = 64
    module = LlamaRotaryEmbedding(config)
    rows = 2 * ryzen_tables.ORIGINAL
    cos, _ = module(torch.zeros(1, 1, 1), torch.arange(rows)[None])
    assert declared.long is not None
    mine, _ = ryzen_tables.tables(declared.long, rows, attention=declared.attention)
    tolerance = 1e-6 + np.outer(np.arange(rows), declared.long) * 2.0**-21
    assert (np.abs(cos[0, :, : declared.pairs].double().numpy() - mine) <= tolerance).all()
