"""Qwen-VL packs that onnxruntime-genai's builder 0.18.0 makes on the spot, with positions in
three axes: by the op MRotaryEmbedding (cpu), and in plain ops (NvTensorRtRtx).

The truth is logits: of transformers 5.24.0's model, at positions whose axes differ.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from mending.test_smollm3 import mean_kl
from oracle.exporters import CURRENT, TOKENIZER, run

from packimport import check, patch

pytestmark = pytest.mark.oracle

# Kind ─▶ its classes, and the layout of its sections.
KINDS = {"qwen2_5_vl": ("Qwen2_5_VL", 0), "qwen3_vl": ("Qwen3VL", 1)}
SECTIONS = [4, 2, 2]
TEXT: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 512,
    "max_position_embeddings": 1024, "tie_word_embeddings": False,
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
VISION = {"depth": 2, "hidden_size": 32, "intermediate_size": 64, "num_heads": 2}
TOKENS = {
    "image_token_id": 500, "video_token_id": 501, "vision_start_token_id": 502,
    "vision_end_token_id": 503, "tie_word_embeddings": False,
}  # fmt: skip
COUNT = 40
IDS = (3 + np.arange(COUNT) * 7 % 400)[None]
POSITIONS = np.stack([np.arange(COUNT), np.arange(COUNT) // 3, np.arange(COUNT) % 11])[:, None]


def model_of(kind: str, theta: float = 1e6, sections: list[int] | None = None) -> Any:
    import torch
    import transformers

    rope = {"rope_type": "default", "rope_theta": theta, "mrope_section": sections or SECTIONS}
    vision: dict[str, Any] = {**VISION, "out_hidden_size": 64}
    if kind == "qwen3_vl":
        vision["deepstack_visual_indexes"] = [0]
    prefix = KINDS[kind][0]
    config = getattr(transformers, f"{prefix}Config")(
        text_config={**TEXT, "rope_parameters": rope}, vision_config=vision, **TOKENS
    )
    torch.manual_seed(0)
    return getattr(transformers, f"{prefix}ForConditionalGeneration")(config).eval()


def save(kind: str, folder: Path, **settings: Any) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model_of(kind, **settings).save_pretrained(folder)
    (folder / "tokenizer.json").write_text(json.dumps(TOKENIZER), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>"}),
        encoding="utf-8",
    )
    return folder


def build(model: Path, out: Path, provider: str, precision: str) -> Path:
    module = "onnxruntime_genai.models.builder"
    run(CURRENT, "-m", module, "-m", str(model), "-o", str(out), "-p", precision, "-e", provider,
        "-c", str(out.parent / "cache"))  # fmt: skip
    return out


def logits(pack: Path) -> np.ndarray:
    session = ort.InferenceSession(str(pack / "model.onnx"), providers=["CPUExecutionProvider"])
    fed: dict[str, Any] = {
        "input_ids": IDS, "attention_mask": np.ones_like(IDS), "position_ids": POSITIONS,
    }  # fmt: skip
    for value in session.get_inputs():
        if value.name.startswith("past"):
            dtype = np.float16 if "float16" in value.type else np.float32
            fed[value.name] = np.zeros((1, 2, 0, 16), dtype)
    return np.asarray(session.run(["logits"], fed)[0][0], np.float32)


def expected(model: Any) -> np.ndarray:
    import torch

    with torch.no_grad():
        return np.asarray(
            model(
                input_ids=torch.tensor(IDS),
                attention_mask=torch.ones(1, COUNT, dtype=torch.long),
                position_ids=torch.tensor(POSITIONS),
            )
            .logits[0]
            .numpy()
        )


@pytest.mark.parametrize(
    ("provider", "precision", "most"), [("cpu", "fp32", 1e-12), ("NvTensorRtRtx", "fp16", 1e-7)]
)
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_verdict(kind: str, provider: str, precision: str, most: float, tmp_path: Path) -> None:
    model = save(kind, tmp_path / "model")
    pack = build(model, tmp_path / "pack", provider, precision)
    right = mean_kl(expected(model_of(kind)), logits(pack))
    assert right < most
    report = check(pack, config=model)
    assert (report.verdict, report.exit_code) == ("ok", 0), report.text()
    assert {judged.site.mrope for judged in report.sites} == {(KINDS[kind][1], *SECTIONS)}
    mixed = KINDS[kind][1] == 1
    others = {
        "RPE026": {"sections": [6, 1, 1] if mixed else [2, 3, 3]},
        "RPE001": {"theta": 300.0},
    }
    for code, settings in others.items():
        other = save(kind, tmp_path / code, **settings)
        found = check(pack, config=other)
        assert {f.code for f in found.findings if f.severity == "error"} == {code}
        wrong = mean_kl(expected(model_of(kind, **settings)), logits(pack))
        assert wrong > 2 * right
    patch(pack, tmp_path / "out", config=tmp_path / "RPE001")
    assert check(tmp_path / "out").verdict == "ok"
    assert mean_kl(expected(model_of(kind, theta=300.0)), logits(tmp_path / "out")) < most
