"""Run by an interpreter with torch and transformers: exported graphs, and whether they are right.

    python make_exports.py EXPORTER CELLS.json OUT

EXPORTER: "script" (torch's older exporter), "dynamo" (its newer one, opset 20), "opset23" (the
newer one at opset 23), or "optimum". For each cell, OUT/NAME holds model.onnx and config.json; and
OUT/NAME.npz the tokens and the model's own logits, for a short call and one beyond the original
length of the schedule.
"""

import json
import sys
import warnings
from pathlib import Path

import numpy as np
import torch
import transformers

LENGTHS = (24, 320)
# Models whose attention torch's fused one can't do: GPT-OSS has a sink; GPT-J is older.
NO_SDPA = {"GptOss", "GPTJ"}


class Plain(torch.nn.Module):
    """Logits of tokens at positions, without a cache."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask, position_ids):
        return self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            use_cache=False,
        ).logits


def inputs(length):
    ids = (torch.arange(length) * 7 % 500)[None]
    return ids, torch.ones_like(ids), torch.arange(length)[None]


def export(exporter, model, path):
    if exporter == "optimum":
        from optimum.exporters.onnx import onnx_export_from_model

        onnx_export_from_model(
            model, path.parent, task="text-generation-with-past", do_validation=False
        )
        return
    names = {
        "input_names": ["input_ids", "attention_mask", "position_ids"],
        "output_names": ["logits"],
    }
    if exporter == "script":
        axes = {name: {0: "b", 1: "s"} for name in names["input_names"]}
        torch.onnx.export(
            Plain(model),
            inputs(12),
            str(path),
            dynamic_axes=axes,
            opset_version=18,
            dynamo=False,
            **names,
        )
        return
    tokens = torch.export.Dim("s", min=2, max=1024)
    torch.onnx.export(
        Plain(model),
        inputs(12),
        str(path),
        dynamic_shapes=({1: tokens},) * 3,
        dynamo=True,
        opset_version=23 if exporter == "opset23" else 20,
        **names,
    )


def main():
    warnings.simplefilter("ignore")
    exporter, cells, out = (
        sys.argv[1],
        json.loads(Path(sys.argv[2]).read_text(encoding="utf-8")),
        Path(sys.argv[3]),
    )
    for name, cell in cells.items():
        kind = cell.pop("class")
        config = getattr(transformers, f"{kind}Config")(**cell)
        is_eager = exporter == "dynamo" or kind in NO_SDPA
        config._attn_implementation = "eager" if is_eager else "sdpa"
        # Dense experts: the other ways of computing them do not export.
        config._experts_implementation = "batched_mm"
        torch.manual_seed(0)
        folder = out / name
        folder.mkdir()
        try:
            model = getattr(transformers, f"{kind.removesuffix('Text')}ForCausalLM")(config).eval()
            with torch.no_grad():
                truth = {str(n): Plain(model)(*inputs(n))[0].numpy() for n in LENGTHS}
                export(exporter, model, folder / "model.onnx")
            model.config.save_pretrained(folder)
            np.savez(out / f"{name}.npz", **truth)
        except Exception as error:  # what an exporter cannot export is a result
            text = f"{type(error).__name__}: {error}"
            (out / f"{name}.txt").write_text(text, encoding="utf-8")


main()
