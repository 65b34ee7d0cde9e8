"""Run by an interpreter with onnxruntime-genai: packs of tiny models, and what they should hold.

    python make_builder_packs.py CELLS.json OUT

For each cell, OUT/NAME/model is the saved model, OUT/NAME/pack what the builder makes of it, and
OUT/NAME/truth.npz cos and sin as this release of transformers computes them: by layer type, for a
call within the original length and one beyond. One process for all: its imports take longest.
"""

import json
import runpy
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
import transformers

SHORT, LONG = 200, 600


def tables(model, tokens):
    """Layer type ("" for all) ─▶ cos and sin [tokens, entries]."""
    positions = torch.arange(tokens)[None]
    x = torch.zeros(1, 1, 1)
    inner = model.model
    found = {}
    types = sorted(set(getattr(model.config, "layer_types", None) or []))
    local = getattr(inner, "rotary_emb_local", None)
    if local is not None:
        found["full_attention"] = inner.rotary_emb(x, positions)
        found["sliding_attention"] = local(x, positions)
        return found
    if isinstance(getattr(model.config, "rope_parameters", None), dict) and (
        set(types) & set(model.config.rope_parameters)
    ):
        return {kind: inner.rotary_emb(x, positions, kind) for kind in types}
    return {"": inner.rotary_emb(x, positions)}


def truth(model):
    made = {}
    for length in (SHORT, LONG):
        for kind, pair in tables(model, length).items():
            for what, values in zip(("cos", "sin"), pair, strict=True):
                made[f"{kind}/{length}/{what}"] = values[0].numpy()
    return made


def make(name, cell, out):
    kind = cell.pop("class")
    config = getattr(transformers, f"{kind}Config")(**cell)
    torch.manual_seed(0)
    causal = kind.removesuffix("Text")
    model = getattr(transformers, f"{causal}ForCausalLM")(config).eval()
    folder = out / name / "model"
    model.save_pretrained(folder)
    tokenizer = json.loads((out / "tokenizer.json").read_text(encoding="utf-8"))
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"}),
        encoding="utf-8",
    )
    np.savez(out / name / "truth.npz", **truth(model))
    sys.argv = ["builder", "-m", str(folder), "-o", str(out / name / "pack"), "-p", "fp32"]
    sys.argv += ["-e", "cpu", "-c", str(out / "cache")]
    runpy.run_module("onnxruntime_genai.models.builder", run_name="__main__")


def main():
    warnings.simplefilter("ignore")
    cells, out = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), Path(sys.argv[2])
    for name, cell in cells.items():
        try:
            with torch.no_grad():
                make(name, cell, out)
        except Exception as error:  # what a builder cannot build is a result
            (out / name).mkdir(parents=True, exist_ok=True)
            text = f"{type(error).__name__}: {error}"
            (out / name / "error.txt").write_text(text, encoding="utf-8")


main()
