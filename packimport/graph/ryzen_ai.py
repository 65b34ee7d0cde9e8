"""Ryzen AI: the op types of a graph after AMD's passes, and what each is to a rotation.

The domain is `com.ryzenai`; older packs and graphs for tests have `com.amd`. Source of
names and of the order of inputs: the passes of AMD's ryzenai_onnx_utils that make them.
"""

from __future__ import annotations

DOMAINS = ("com.ryzenai", "com.amd")

_Kinds = frozenset[tuple[str, str]]


def _kinds(*ops: str) -> _Kinds:
    return frozenset((domain, op) for domain in DOMAINS for op in ops)


# One attention layer and the projection behind it: its inputs depend on their number.
GQO = _kinds("GQO")
# GroupQueryAttention as onnxruntime has it, under a domain of AMD's.
GQA = _kinds("GQA", "GroupQueryAttention", "AMDGroupQueryAttention")
GROUP_QUERY = GQO | GQA
# A compiled subgraph: it stands for the whole decoder, or for much of it.
DISPATCH = _kinds("DynamicDispatch")

# What hands on its first input, changed alike at every position.
PASSING = _kinds("Cast", "CastAvx", "SLRN")
# Projections, whose weights are constants by the op's own definition.
PROJECTIONS = _kinds("MatMulNBits", "MatMulNBitsBf")
# Ops that are known not to rotate.
STILL = PASSING | PROJECTIONS | _kinds(
    "MatMul", "SSLRN", "SSMLP", "SSGMLP", "SSMLP_FUSE", "LUT", "QMoE", "QMoEBf", "DynamicPad",
    "ConvSplitMul",
)  # fmt: skip
