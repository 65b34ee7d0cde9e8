"""What the tests of real models share: each is made once in a session."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import smollm2
from serving import COUNT, ROOT, succeed


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with hf, pack, declared/config.json and tokens.npy; 4 GB at the end, then gone."""
    folder = tmp_path_factory.mktemp("smollm2")
    smollm2.make(folder)
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "pack" / "tokenizer.json"))
    ids = tokenizer.encode((ROOT / "LICENSE").read_text(encoding="utf-8")).ids
    np.save(folder / "tokens.npy", np.array(ids[:COUNT]))
    assert len(ids) >= COUNT
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def patched(made: Path) -> Path:
    out = made / "patched"
    succeed("packimport", "patch", made / "pack", "-o", out, "--config", made / "declared")
    return out
