"""Asks transformers for frequencies, in a process of its own.

torch chooses its CPU kernels when it is imported, so ATEN_CPU_CAPABILITY must
be set before: the test starts this file with it. Standard input: a JSON list of
requests. Standard output: per request the frequencies as hexadecimal floats and
the attention factor.
"""

from __future__ import annotations

import json
import os
import sys

Request = dict[str, object]


def answer(request: Request) -> dict[str, object]:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
    from transformers.models.hunyuan_vl.modeling_hunyuan_vl import HunYuanVLRotaryEmbedding
    from transformers.models.phi.modeling_phi import PhiRotaryEmbedding

    head_dim = request["head_dim"]
    block = dict(request["block"])
    config = LlamaConfig(
        hidden_size=head_dim * 2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=head_dim,
        max_position_embeddings=request["max_position_embeddings"],
        rope_parameters=block,
    )
    if "alpha" in block:
        inv_freq, factor = HunYuanVLRotaryEmbedding.compute_ntk_alpha_rope_parameters(config)
    elif block["rope_type"] == "default":
        inv_freq, factor = PhiRotaryEmbedding.compute_default_rope_parameters(config)
    else:
        function = ROPE_INIT_FUNCTIONS[block["rope_type"]]
        inv_freq, factor = function(config, seq_len=request["seq_len"])
    return {"inv_freq": [float(x).hex() for x in inv_freq], "attention_factor": factor}


def main() -> None:
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    wanted = os.environ.get("ATEN_CPU_CAPABILITY", "")
    found = torch.backends.cpu.get_cpu_capability()
    if wanted == "default" and found != "DEFAULT":
        sys.exit(f"torch runs with capability {found}")
    json.dump([answer(request) for request in json.load(sys.stdin)], sys.stdout)


if __name__ == "__main__":
    main()
