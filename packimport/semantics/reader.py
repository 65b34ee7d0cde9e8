"""The reader: a container's configs as Semantics.

The declaration that counts is the first of: `--config`, `--model`, the one that
`packimport.json` keeps, the pack's own `config.json`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

from packimport.errors import PackimportError, UsageError
from packimport.pack.documents import Document, json_text, load_json, read_json
from packimport.rope.schedule import Rope
from packimport.semantics.config import Reading, read_reading
from packimport.semantics.describe import describe
from packimport.semantics.genai import EMPTY, GenaiConfig, read_genai_config
from packimport.semantics.genai import FILE as GENAI
from packimport.semantics.model import Declaration, Semantics, Source
from packimport.semantics.models import known_id, model_config

CONFIG = "config.json"
MANIFEST = "packimport.json"
# A manifest lists every file of a pack; a config is a few kilobytes.
_LIMIT = 16 * 2**20


class Files(Protocol):
    """What the reader needs of a Container."""

    def has(self, name: str, /) -> bool:
        """Whether the pack has a file of that name."""

    def read_bytes(self, name: str, /, limit: int) -> bytes:
        """The bytes of a file, at most `limit`."""


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A config that may declare the schedule, and where it came from."""

    file: str
    origin: str
    document: Document
    model: str | None = None


def read_semantics(
    container: Files | str | Path, config: str | Path | None = None, model: str | None = None
) -> Semantics:
    """What a pack declares.

    container: an opened container; or the path of one, or of a bare config.json or
               the folder of a model that has one.
    config:    the source model's config.json or its folder; wins over the pack's own.
    model:     a known model of schemas/models.yaml, in place of `config`.

    Raises DocumentError, by file and JSON pointer, for a config that is
    malformed, contradicts itself or the pack, or says of position what is not
    understood; UsageError where `config` and `model` are both given, or either
    beside a bare config.json.
    """
    if isinstance(container, str | Path):
        from packimport.pack.archive import opened
        from packimport.pack.signals import interruptible

        path = Path(container)
        bare = bare_config(path)
        if bare is not None:
            if config is not None or model is not None:
                raise UsageError(
                    "a config declares for itself: --config and --model are for packs",
                    place=str(path),
                    fix="Pass the one config alone.",
                )
            return read_config(bare)
        with opened(path) as pack, interruptible():
            return read_semantics(pack, config, model)
    genai = EMPTY
    if container.has(GENAI):
        genai = read_genai_config(_document(container, GENAI))
    candidates = [*_named(config, model), *_own(container)]
    if not candidates:
        return _semantics(None, None, genai, ())
    winner, *losers = candidates
    reading = read_reading(winner.document, genai)
    notes = tuple(_contradictions(winner, reading, losers, genai))
    return _semantics(winner, reading, genai, notes)


def bare_config(path: Path) -> Path | None:
    """The config.json that `path` is, or holds without being a pack; None for a pack."""
    from packimport.pack.archive import archive_format

    if path.is_file():
        is_other = path.suffix.lower() == ".onnx" or archive_format(path) is not None
        return None if is_other else path
    inside = path / CONFIG
    is_pack = (path / GENAI).exists() or any(path.rglob("*.onnx"))
    return inside if inside.is_file() and not is_pack else None


def read_config(path: str | Path) -> Semantics:
    """What a bare config.json declares. Raises DocumentError as `read_semantics` does."""
    file = str(path)
    document = Document(file, load_json(Path(path), file, _LIMIT))
    reading = read_reading(document, EMPTY)
    return _semantics(_Candidate(file, CONFIG, document), reading, EMPTY, ())


def read_model(model: str) -> Semantics:
    """What the known model of that id declares. Raises UsageError where there is none."""
    candidate = _known(model)
    return _semantics(candidate, read_reading(candidate.document, EMPTY), EMPTY, ())


def source_config(config: str | Path | None, model: str | None) -> bytes | None:
    """The config that `--config` or `--model` names, as a file's bytes; None without either."""
    if config is not None:
        path, file = _config_path(config)
        load_json(path, file, _LIMIT)
        return path.read_bytes()
    if model is not None:
        return json_text(model_config(model).value).encode()
    return None


def _config_path(config: str | Path) -> tuple[Path, str]:
    path = Path(config)
    path = path / CONFIG if path.is_dir() else path
    return path, str(path)


def _named(config: str | Path | None, model: str | None) -> Iterator[_Candidate]:
    """The config that the user names."""
    if config is not None and model is not None:
        raise UsageError("--config and --model both name a declaration", fix="Pass one of the two.")
    if config is not None:
        path, file = _config_path(config)
        document = Document(file, load_json(path, file, _LIMIT))
        if not document.fields():
            raise document.error("this config is empty", allowed="the source model's config.json")
        yield _Candidate(file, "--config", document)
    if model is not None:
        yield _known(model)


def _known(model: str) -> _Candidate:
    document = model_config(model)
    return _Candidate(document.file, "--model", document, known_id(model))


def _own(container: Files) -> Iterator[_Candidate]:
    """The configs that the pack has; an empty one says nothing."""
    if container.has(MANIFEST):
        manifest = _document(container, MANIFEST)
        # An object of another kind may not pass for a manifest that declares nothing.
        manifest.require("schema_version", "a file that packimport wrote").integer(1)
        declaration = manifest.get("declaration")
        if declaration is not None:
            yield _Candidate(MANIFEST, MANIFEST, declaration.require("config"))
    if container.has(CONFIG):
        document = _document(container, CONFIG)
        if document.fields():
            yield _Candidate(CONFIG, CONFIG, document)


def _document(container: Files, name: str) -> Document:
    return Document(name, read_json(container.read_bytes(name, limit=_LIMIT), name))


def _contradictions(
    winner: _Candidate, reading: Reading, losers: list[_Candidate], genai: GenaiConfig
) -> Iterator[str]:
    """A note for each config that says otherwise than the one that counts."""
    for loser in losers:
        try:
            other = read_reading(loser.document, genai)
        except PackimportError as error:
            yield f"{loser.file} is not understood and does not count: {error}"
            continue
        if other.declared is None:
            continue
        said, counts = _schedules(other.layers), _schedules(reading.layers)
        if said != counts:
            yield (
                f"{loser.file} declares {_listed(other.layers)}, {winner.file} declares"
                f" {_listed(reading.layers)}: {winner.origin} counts"
            )


def _schedules(layers: tuple[Rope | None, ...]) -> tuple[Rope | None, ...]:
    """The layers without what leaves a table alone."""
    return tuple(
        rope
        if rope is None or rope.type in ("dynamic", "longrope", "yarn")
        else replace(rope, max_position_embeddings=None)
        for rope in layers
    )


def _listed(layers: tuple[Rope | None, ...]) -> str:
    return " / ".join(describe(rope) for rope in dict.fromkeys(layers)) or "nothing"


def _semantics(
    candidate: _Candidate | None,
    reading: Reading | None,
    genai: GenaiConfig,
    notes: tuple[str, ...],
) -> Semantics:
    sizes: dict[str, int] = {}
    sources: dict[str, Source] = {}
    if reading is None:
        known = {name: (node.integer(1), node) for name, node in genai.dimensions.items()}
    else:
        known = {name: (size.value, size.node) for name, size in reading.dimensions.sizes.items()}
    for name, (value, node) in known.items():
        sizes[name], sources[name] = value, Source(node.file, node.pointer)
    if genai.context_length is not None:
        sizes["context_length"] = genai.context_length.integer(1)
        sources["context_length"] = Source(GENAI, genai.context_length.pointer)
    if genai.usable_length is not None:
        sizes["usable_length"], node = genai.usable_length
        sources["usable_length"] = Source(GENAI, node.pointer)
    declaration = None
    if candidate is not None and reading is not None and reading.declared is not None:
        declaration = Declaration(
            file=candidate.file,
            origin=candidate.origin,
            config=reading.declared,
            model=candidate.model,
        )
    return Semantics(
        model_type=None if reading is None else reading.model_type,
        declaration=declaration,
        layers=() if reading is None else reading.layers,
        layer_sources=() if reading is None else reading.layer_sources,
        pair_layout=None if reading is None else reading.pair_layout,
        family_known=reading is None or reading.family_known,
        without_attention=() if reading is None else reading.without_attention,
        sources=sources,
        graphs=genai.graphs,
        inputs=genai.inputs,
        notes=((*reading.notes, *notes) if reading is not None else notes),
        **sizes,
    )
