"""Comparing on a real model, where no reference is at hand and where llama.cpp made it.

SmolLM2-135M in float32; its pack by onnxruntime-genai 0.18.0's builder; the base by llama.cpp (see
tests/forward/test_kld_base.py). The text is that of Python's own manual.
"""

from __future__ import annotations

import importlib.util
import json
import shutil
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import pytest
import smollm2
from serving import ROOT, command, succeed

MISSING = [name for name in smollm2.NEEDED if importlib.util.find_spec(name) is None]
pytestmark = [
    pytest.mark.oracle,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {MISSING}; see smollm2.py"),
]

LONG = 4096
BASE = ROOT / "tests" / "data" / "smollm2-q4.kld"


def test_likelihood_without_a_reference(made: Path, patched: Path) -> None:
    """The weights were trained with the plain table: llama3 over them harms, the more the farther.

    Measured over 4096 tokens: +0.97 nats per token, from +0.15 at 128-511 to +1.5 beyond 2047;
    nothing can be told below 128, where the two schedules hardly differ.
    """
    import tokenizers

    text = "\n".join(topics[key] for key in ("execmodel", "objects", "import", "specialnames"))
    tokenizer = tokenizers.Tokenizer.from_file(str(made / "pack" / "tokenizer.json"))
    ids = tokenizer.encode(text).ids[:LONG]
    assert len(ids) == LONG
    np.save(made / "long.npy", np.array(ids))
    for name, pack in (("plain", made / "pack"), ("mended", patched)):
        words = ("--tokens", made / "long.npy", "--chunk", 512, "--dump-logits", made / name)
        succeed("forward", pack, *words)
    nll = ("forward", "compare", "--format", "json", "--nll")
    code, out = command(*nll, made / "plain", made / "mended")
    found = json.loads(out)
    print(json.dumps(found["overall"]), *map(json.dumps, found["buckets"]), sep="\n")
    assert (code, found["verdict"]) == (1, "harms")
    far = found["buckets"][1:]
    assert [part["name"] for part in far] == ["128-511", "512-1023", "1024-2047", "2048-4095"]
    assert {part["word"] for part in (found["overall"], *far)} == {"harms"}
    differences = [part["difference"] for part in found["buckets"]]
    assert differences == sorted(differences)
    code, out = command(*nll, made / "plain", made / "plain")
    same = json.loads(out)
    assert (code, same["verdict"]) == (0, "cannot be told")
    assert {part["difference"] for part in same["buckets"]} == {0.0}
    for name in ("plain", "mended"):
        shutil.rmtree(made / name)


def test_a_base_of_llama_cpp(made: Path) -> None:
    """The base that llama.cpp made of the Q4_1 file, against the pack of its dequantised weights.

    Its own kernels round activations to 8 bits. Measured with 64 tokens a chunk: mean KL
    0.008 to 0.026; these two rows are of the third token of a text.
    """
    succeed("forward", "import", BASE, "-o", made / "base")
    for chunk in ("chunk-0000", "chunk-0001"):
        words = ("--tokens", made / "base" / chunk / "tokens.npy", "--dump-logits", made / chunk)
        succeed("forward", made / "pack", *words)
        pair = (made / "base" / chunk, made / chunk)
        found = json.loads(succeed("forward", "compare", *pair, "--format", "json"))
        print(json.dumps(found["overall"]))
        assert found["positions"] == 1
        assert found["overall"]["kl_max"] <= 0.2
