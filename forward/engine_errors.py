"""Engine errors: what onnxruntime's messages mean, in one line that a user can act on."""

from __future__ import annotations

import re

from packimport.errors import GraphError

# What onnxruntime says where a position lies beyond the rows of a RoPE table.
_TOO_FEW_ROWS = (
    "cos_cache dimension 0 shall not be less than total_sequence_length",
    "Updating cos_cache and sin_cache in RotaryEmbedding is not currently supported",
    "Status Message: position_ids value",
)

# What it says where it has no such operator.
_NO_KERNEL = ("is not a registered function/op", "NOT_IMPLEMENTED", "No Op registered")

# Its words for an operator that it lacks, and for a node that fails in a run; and where in
# its own source that happened, which tells a user nothing.
_OPERATORS = (
    re.compile(r"Fatal error: (\S+)\(-?\d+\) is not a registered function/op"),
    re.compile(r"Could not find an implementation for (\S+)\(\d+\) node"),
)
_ATTRIBUTE = re.compile(r"Unrecognized attribute: (\S+) for operator (\S+)")
_INVALID = re.compile(
    r"^(?:Load model from .*? failed:)?"
    r"(?:This is an invalid model\..* Error|Invalid model\.) (?=\S)"
)
_FAILED = re.compile(r"while running (\S+) node\. Name:'([^']*)' Status Message: (.*)", re.DOTALL)
_SOURCE = re.compile(r"^\S+\.(?:cc|h):\d+ (?:.* was false\. (?=\S))?")


def load_error(text: str, place: str, version: str, where: str) -> GraphError:
    """Why onnxruntime of a version does not load the graph `place`; where: it was to run."""
    foreign = any(sign in text for sign in _NO_KERNEL)
    newer = _ATTRIBUTE.search(text)
    if newer is not None:
        return GraphError(
            f"onnxruntime {version} does not know the attribute {newer[1]} of {newer[2]}",
            place=place,
            fix="Use the release of onnxruntime that the pack was made for, or a later one.",
        )
    op = next((found for pattern in _OPERATORS if (found := pattern.search(text))), None)
    device = "A graph made for an NPU or GPU runs only in that device's environment."
    if op is None:
        message = f"onnxruntime {version} can't load the graph on {where}: {_short(text)}"
        return GraphError(message, place=place, fix=device if foreign else None)
    later = " A later release of onnxruntime may have it."
    return GraphError(
        f"onnxruntime {version} has no operator {op[1]} on {where}",
        place=place,
        fix=device + (later if op[1].startswith("com.microsoft") else ""),
    )


def run_error(text: str, place: str) -> GraphError:
    """Why onnxruntime can't run the graph `place`: the node, and its words for the cause."""
    if any(sign in text for sign in _TOO_FEW_ROWS):
        return GraphError(
            "a RoPE table of the graph has fewer rows than the run has positions",
            place=place,
            fix="Pass fewer tokens; `packimport` on the pack prints the rows of each table.",
        )
    what = "onnxruntime can't run the graph"
    found = _FAILED.search(text)
    if found is None:
        return GraphError(f"{what}: {_short(text)}", place=place)
    # A node of a branch fails within the If, which tells less.
    while (inner := _FAILED.search(found[3])) is not None:
        found = inner
    op, name, reason = found.groups()
    return GraphError(f"{what}: {op} fails: {_short(reason)}", place=f"{place}, node {name}")


def _short(text: str) -> str:
    """onnxruntime's message without its code, kind and place in its source, on one line."""
    if text.startswith("[ONNXRuntimeError]"):
        text = text.split(" : ", 3)[-1]
    text = _INVALID.sub("", _SOURCE.sub("", " ".join(text.split()))).rstrip(".")
    return text if len(text) <= 300 else text[:299] + "…"
