"""Targets: each reader of what a stranger wrote, as a function of a folder and bytes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from archives import FORMATS, archive_of
from builders import plain, tiny_pack

from forward.dump import read_dump
from forward.dump_writer import Provenance, write_dump
from forward.form import ALL, Form
from forward.kld_base import read_base, write_base
from forward.prompt import read_tokens
from forward.steps import Block, plan
from packimport.errors import PackimportError
from packimport.graph.encodings import decode
from packimport.graph.find import find_sites
from packimport.graph.site import Hints
from packimport.graph.wire import Wire
from packimport.pack.archive import opened
from packimport.pack.container import open_container
from packimport.pack.documents import Document, json_text, read_json
from packimport.pack.journal import FOLDER, UNFINISHED
from packimport.pack.manifest import read_manifest
from packimport.pack.undo import recover
from packimport.semantics.genai import read_genai_config
from packimport.semantics.reader import read_config

TESTS = Path(__file__).parent.parent
FORMS = {"whole": ALL, "top": Form(top_k=3)}
HINTS = Hints(past_key_names="past_key_values.%d.key")


@dataclass(frozen=True)
class Target:
    """seeds: good inputs. read: reads one input; `folder` is a fresh pack's or an empty one."""

    seeds: list[bytes]
    read: Callable[[Path, bytes], None]


def strict_json(_: Path, data: bytes) -> None:
    read_json(data, "x.json")


def config(folder: Path, data: bytes) -> None:
    path = folder / "config.json"
    path.write_bytes(data)
    read_config(path)


def genai_config(_: Path, data: bytes) -> None:
    read_genai_config(Document("genai_config.json", read_json(data, "genai_config.json")))


def manifest(folder: Path, data: bytes) -> None:
    (folder / "packimport.json").write_bytes(data)
    read_manifest(open_container(folder))


def unfinished(folder: Path, data: bytes) -> None:
    """A journal whose checksum fits, which a run obeys that recovers the pack."""
    kept = folder.parent / "unfinished seed" / FOLDER
    with contextlib.suppress(PackimportError):
        body = read_json(data, UNFINISHED)
        if isinstance(body, dict):
            body.pop("checksum", None)
            text = json_text(body)
            sealed = {**body, "checksum": hashlib.sha256(text.encode()).hexdigest()}
            data = json_text(sealed).encode("utf-8", "surrogatepass")
    if not (folder / FOLDER).exists():
        shutil.copytree(kept.parent, folder, dirs_exist_ok=True)
    (folder / FOLDER / UNFINISHED).write_bytes(data)
    # Where it is obeyed, `recover` removes the folder.
    recover(folder)


def wire(_: Path, data: bytes) -> None:
    Wire(memoryview(data), "model.onnx").slim()


def graph(folder: Path, data: bytes) -> None:
    (folder / "model.onnx").write_bytes(data)
    container = open_container(folder)
    for site in find_sites(container, "model.onnx", HINTS).sites:
        decode(site, container)


def archive(folder: Path, data: bytes) -> None:
    path = folder / "p.tar"
    path.write_bytes(data)
    with opened(path, scratch=folder):
        pass


def dump(folder: Path, data: bytes) -> None:
    """The first byte chooses the file that is spoilt."""
    place = folder / ("whole" if data[:1] < b"\x80" else "top")
    files = sorted(place.iterdir())
    path = files[(data[0] if data else 0) % len(files)]
    kept = path.read_bytes()
    path.write_bytes(data[1:])
    try:
        read_dump(place).logits[0:1]
    finally:
        path.write_bytes(kept)


def kld(folder: Path, data: bytes) -> None:
    path = folder / "base.kld"
    path.write_bytes(data)
    base = read_base(path)
    base.log_probs(0)


def tokens(folder: Path, data: bytes) -> None:
    path = folder / "tokens.npy"
    path.write_bytes(data)
    read_tokens(path)


def targets(folder: Path) -> dict[str, Target]:
    """All of them; `folder` is filled with what they need."""
    rows = json.loads((TESTS / "data" / "rope_configs.json").read_text(encoding="utf-8"))
    known = [row["config"] for row in rows if row["config"].get("model_type")]
    # Rows that state a list's first entries, or layer types of another count, are no configs.
    configs = [json.dumps({"num_hidden_layers": 2, **config}).encode() for config in known]
    configs = [data for data in configs if b"_first8" not in data and b"layer_types" not in data]
    files = sorted((TESTS / "data" / "genai").glob("*genai_config.json"))
    genai = [path.read_bytes() for path in files]
    return {
        "strict_json": Target([*configs[:20], *genai], strict_json),
        "config": Target(configs, config),
        "genai_config": Target(genai, genai_config),
        "manifest": Target(_manifests(folder), manifest),
        "unfinished": Target(_journals(folder), unfinished),
        "wire": Target(_graphs(folder), wire),
        "graph": Target(_graphs(folder), graph),
        "archive": Target(_archives(folder), archive),
        "dump": Target(_dumps(folder), dump),
        "kld": Target(_bases(folder), kld),
        "tokens": Target(_arrays(), tokens),
    }


def _manifests(folder: Path) -> list[bytes]:
    from packimport.patching import patch

    pack = tiny_pack(folder / "manifest seed", config={}, tables=plain(64, 8, 500.0))
    patch(pack, folder / "manifest")
    return [(folder / "manifest" / "packimport.json").read_bytes()]


def _journals(folder: Path) -> list[bytes]:
    from packimport.in_place import patch_in_place

    pack = folder / "unfinished seed"
    tiny_pack(pack, config={}, tables=plain(64, 8, 500.0))
    patch_in_place(pack)
    record = pack / FOLDER / "0001.json"
    data = record.read_bytes()
    record.unlink()
    return [data]


def _graphs(folder: Path) -> list[bytes]:
    found = []
    for form in ("gqa", "rotary_embedding"):
        for inline in (True, False):
            pack = folder / f"{form} {inline}"
            if not pack.exists():
                tiny_pack(pack, form=form, inline=inline, layers=1, hidden=8, head_dim=8, heads=2,
                          rows=16)  # fmt: skip
            model = onnx.load(pack / "model.onnx", load_external_data=False)
            found.append(model.SerializeToString())
            data = pack / "model.onnx.data"
            if data.exists() and not (folder / "graph" / data.name).exists():
                (folder / "graph").mkdir(exist_ok=True)
                (folder / "graph" / data.name).write_bytes(data.read_bytes())
    return found


def _archives(folder: Path) -> list[bytes]:
    files = {"model.onnx": b"graph", "d/genai_config.json": b"{}" * 300, "d/\u00fc": b"x" * 700}
    return [archive_of(files, folder / f"seed.{form}").read_bytes() for form in FORMATS]


def _arrays() -> list[bytes]:
    import io

    found = []
    for array in (np.arange(9), np.arange(9, dtype=np.int32)):
        out = io.BytesIO()
        np.save(out, array)
        found.append(out.getvalue())
    return found


def _dumps(folder: Path) -> list[bytes]:
    tokens, logits = np.arange(6), np.random.default_rng(0).normal(size=(6, 11)).astype(np.float32)
    provenance = Provenance(
        engine={"name": "onnxruntime", "version": "1.32.0", "threads": None}
        | {"provider": "CPUExecutionProvider", "graph_optimization": "all"},
        kind="pack",
        path="a pack",
        files={"model.onnx": (2, "a" * 64)},
    )
    (folder / "dump").mkdir()
    found = []
    for start, (name, form) in zip((0, 128), FORMS.items(), strict=True):
        blocks = [Block(step, logits[step.start : step.stop]) for step in plan(6, 0, None)]
        write_dump(folder / "dump" / name, tokens, blocks, lambda: provenance, form=form)
        files = sorted((folder / "dump" / name).iterdir())
        # A first byte that chooses the file that follows.
        count = len(files)
        chosen = [start + (i - start) % count for i in range(count)]
        found += [bytes([b]) + path.read_bytes() for b, path in zip(chosen, files, strict=True)]
    return found


def _bases(folder: Path) -> list[bytes]:
    logits = np.random.default_rng(0).normal(size=(7, 11)).astype(np.float32)
    path = folder / "seed.kld"
    with path.open("wb") as file:
        write_base(file, np.arange(16).reshape(1, 16) % 11, 11, iter([logits]))
    return [path.read_bytes()]
