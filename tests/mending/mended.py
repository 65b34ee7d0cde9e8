"""What every mended pack must keep, and how packs are run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray

from packimport import check, patch
from packimport.graph.onnx_file import check as onnx_complaints
from packimport.pack.container import open_container
from packimport.pack.documents import validate
from packimport.pack.manifest import read_manifest
from packimport.pack.verification import verify
from packimport.patching import Patched

TOKENS = np.random.default_rng(7).integers(0, 64, 200)


def mend(pack: Path, out: Path) -> Patched:
    """Patch a pack whose graph has to be changed, and hold the result to the rules."""
    patched = patch(pack, out)
    assert patched.graph_changes
    assert check(out).verdict == "ok"
    kept_bytes(pack, out)
    kept_nodes(pack, out)
    text = (out / "packimport.json").read_text(encoding="utf-8")
    validate(json.loads(text), "packimport.schema.json", "packimport.json")
    opened = open_container(out)
    manifest = read_manifest(opened)
    assert manifest is not None
    assert verify(opened, manifest).ok
    for record in patched.graph_changes:
        assert record.where in patched.text()
        assert record.reason in patched.text()
    again = patch(out, out.with_name(f"{out.name} again"))
    assert again.changes == ()
    return patched


def kept_bytes(pack: Path, out: Path) -> None:
    """Only the graph is a new file; data files grow at their end, edited spans apart."""
    manifest = json.loads((out / "packimport.json").read_text(encoding="utf-8"))
    remade = {item["file"] for item in manifest["replacements"]}
    assert remade == {path.name for path in pack.glob("*.onnx")} & remade
    for path in pack.iterdir():
        if path.name in remade or path.name == "packimport.json":
            continue
        old, new = bytearray(path.read_bytes()), bytearray((out / path.name).read_bytes())
        for edit in manifest["edits"]:
            if edit["file"] == path.name:
                there = slice(edit["offset"], edit["offset"] + edit["length"])
                old[there] = new[there] = bytes(edit["length"])
        assert new[: len(old)] == old
        added = [item for item in manifest["additions"] if item["file"] == path.name]
        assert len(new) == max([len(old), *(a["offset"] + a["length"] for a in added)])


def kept_nodes(pack: Path, out: Path) -> None:
    """No node is renamed, the order is one that runs, and onnx has nothing new against it."""
    for path in pack.glob("*.onnx"):
        before, after = (
            onnx.load(folder / path.name, load_external_data=False) for folder in (pack, out)
        )
        old = [node.name for node in before.graph.node]
        kept = [node.name for node in after.graph.node if not node.name.startswith("packimport/")]
        assert kept == [name for name in old if name in kept]
        names = [node.name for node in after.graph.node]
        assert len(set(names)) == len(names)
        made = {v.name for v in after.graph.input} | {t.name for t in after.graph.initializer}
        for node in after.graph.node:
            assert set(node.input) - {""} <= made, node.name
            made |= set(node.output)
        assert onnx_complaints(out / path.name) in ([], onnx_complaints(pack / path.name))


def run(pack: Path, tokens: NDArray[np.int64], decode: int = 0) -> NDArray[np.float32]:
    """Logits [tokens, vocab] of a pack: a prefill, then `decode` tokens one by one."""
    session = onnxruntime.InferenceSession(
        str(pack / "model.onnx"), providers=["CPUExecutionProvider"]
    )
    inputs = {value.name: value for value in session.get_inputs()}
    names = [value.name for value in session.get_outputs()]
    dtypes = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
    past = {
        name: np.zeros((1, value.shape[1], 0, _entries(pack, value.shape[3])), dtypes[value.type])
        for name, value in inputs.items()
        if name.startswith("past")
    }
    logits: list[NDArray[np.float32]] = []
    for start, stop in _steps(len(tokens), decode):
        feeds = {
            "input_ids": tokens[None, start:stop],
            "attention_mask": np.ones((1, stop), np.int64),
            "position_ids": np.arange(start, stop)[None],
            **past,
        }
        results = session.run(names, {k: v for k, v in feeds.items() if k in inputs})
        by_name = dict(zip(names, results, strict=True))
        past = {name: by_name[name.replace("past_key_values", "present")] for name in past}
        logits.append(by_name["logits"][0])
    return np.concatenate(logits).astype(np.float32)


def _entries(pack: Path, dim: int | str) -> int:
    """Entries of a key: builder 0.18.0 gives the dim a name."""
    if isinstance(dim, int):
        return dim
    config = json.loads((pack / "genai_config.json").read_text(encoding="utf-8"))
    return int(config["model"]["decoder"]["head_size"])


def _steps(count: int, decode: int) -> Sequence[tuple[int, int]]:
    prefill = count - decode
    return [(0, prefill), *((at, at + 1) for at in range(prefill, count))]


def set_lengths(pack: Path, length: int) -> Path:
    """Let a pack be used for `length` positions; the pack."""
    path = pack / "genai_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config["model"]["context_length"] = config["search"]["max_length"] = length
    path.write_text(json.dumps(config), encoding="utf-8", newline="\n")
    return pack
