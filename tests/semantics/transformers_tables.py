"""Asks transformers for the tables of whole configs, in a process of its own.

torch chooses its CPU kernels once per process, so ATEN_CPU_CAPABILITY must be set before: the test
starts this file with it. Standard input: JSON, name ─▶ config. Standard output: name ─▶ the
frequencies that the rotary module of the config's class holds, by the name of its buffer, as
hexadecimal floats, each with its attention factor; or an error as a string.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import sys
from typing import Any


def answer(value: dict[str, Any]) -> dict[str, Any] | str:
    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    value = value.get("text_config", value)
    if value.get("model_type") not in CONFIG_MAPPING:
        return "no class"
    config = CONFIG_MAPPING[value["model_type"]].from_dict(value).get_text_config()
    name = type(config).__module__.replace(".configuration_", ".modeling_")
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError:
        return "no modeling"
    classes = [
        value
        for name, value in inspect.getmembers(module, inspect.isclass)
        if name.endswith("RotaryEmbedding") and "Vision" not in name and "Audio" not in name
    ]
    if len(classes) != 1:
        return "no module of tables"
    rotary = classes[0](config)
    found = {
        key: {
            "inv_freq": [float(x).hex() for x in buffer],
            "attention_factor": getattr(rotary, key.replace("inv_freq", "attention_scaling"), None),
        }
        for key, buffer in rotary.named_buffers()
        if key.endswith("inv_freq") and "original" not in key
    }
    return found or "no module of tables"


def main() -> None:
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    wanted = os.environ.get("ATEN_CPU_CAPABILITY", "")
    found = torch.backends.cpu.get_cpu_capability()
    if wanted == "default" and found != "DEFAULT":
        sys.exit(f"torch runs with capability {found}")
    answers = {}
    for name, config in json.load(sys.stdin).items():
        try:
            answers[name] = answer(config)
        except Exception as error:  # whatever a class refuses its config with
            answers[name] = f"refused: {error}"
    json.dump(answers, sys.stdout)


if __name__ == "__main__":
    main()
