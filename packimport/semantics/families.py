"""Families: what a model type implies. The knowledge is schemas/families.yaml."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

from packimport.pack.documents import Document, load_yaml, schema_path

FILE = "families.yaml"


@dataclass(frozen=True, slots=True)
class Family:
    """What is known of a model type, or, where it is unknown, of none.

    name:  the model type.
    known: whether families.yaml has it. What is not known is read as Llama is.
    parts: entries of families.yaml; the first that has a field counts.
    """

    name: str
    known: bool
    parts: tuple[Document, ...]

    def get(self, field: str) -> Document | None:
        """The field of that name (see the head of families.yaml), or None."""
        return next((d for part in self.parts if (d := part.get(field)) is not None), None)

    def text(self, field: str, default: str) -> str:
        """The field as a string."""
        found = self.get(field)
        return default if found is None else found.text()

    def flag(self, field: str, default: bool = False) -> bool:
        """The field as true or false."""
        found = self.get(field)
        return default if found is None else found.boolean()

    def texts(self, field: str) -> tuple[str, ...]:
        """The field as a list of strings; empty where there is none."""
        found = self.get(field)
        return () if found is None else found.texts()

    def merged(self, field: str) -> dict[str, Document]:
        """The field of every part as one object; the first part counts."""
        result: dict[str, Document] = {}
        for part in reversed(self.parts):
            found = part.get(field)
            result |= {} if found is None else found.fields()
        return result

    @property
    def still(self) -> bool:
        """Whether no layer of the family rotates, whatever keys its configs carry."""
        schedules = self.get("schedules")
        layers = self.get("layers")
        if schedules is None or layers is None or set(layers.fields()) != {"all"}:
            return False
        return schedules.require(layers.require("all").text()).value == "none"


@cache
def knowledge() -> Document:
    """families.yaml, which is part of the installation."""
    return Document(FILE, load_yaml(schema_path(FILE), FILE))


def spellings(name: str) -> tuple[str, ...]:
    """The keys of a config that state `name`, in the order in which they count."""
    return knowledge().require("spellings").require(name).texts()


def rotating_labels() -> tuple[str, ...]:
    """The layer types that rotate where a family says nothing else."""
    return knowledge().require("rotating").texts()


def family_of(config: Document) -> Family:
    """The family of a (text) config by its model_type, with the variants that its keys decide.

    Raises DocumentError where model_type is missing, the family is refused, or
    the key that decides a variant holds a value that no variant has.
    """
    name = config.require(
        "model_type", allowed="the name of a model's architecture, such as llama"
    ).text()
    families = knowledge().require("families")
    if not families.has(name):
        return Family(name, False, (families.require("llama"),))
    family = Family(name, True, tuple(_parts(families, name)))
    reason = family.get("unsupported")
    if reason is not None:
        raise config.require("model_type").error(
            f"this family is not supported: {reason.text()}",
            fix="packimport can't judge packs of it.",
        )
    return _with_variant(family, config)


def nested_type(config: Document) -> Document | None:
    """The family of a nested text config that does not name its own, by the outer one's."""
    outer = config.get("model_type")
    families = knowledge().require("families")
    if outer is None or not families.has(outer.text()):
        return None
    return families.require(outer.text()).get("text")


def _parts(families: Document, name: str) -> Iterator[Document]:
    part: Document | None = families.require(name)
    while part is not None:
        yield part
        like = part.get("like")
        part = None if like is None else families.require(like.text())


def _with_variant(family: Family, config: Document) -> Family:
    variants = family.get("variants")
    if variants is None:
        return family
    key = variants.require("key").text()
    node = config.get(key)
    if node is None:
        case = variants.get("absent")
        if case is None:
            raise config.error("this key is missing", key=key, allowed=_cases(variants))
    else:
        cases = variants.get("cases")
        found = None if cases is None else cases.get(as_label(node.value))
        case = found or variants.get("other")
        if case is None:
            raise node.error(
                f"family {family.name} is not known with this value", allowed=_cases(variants)
            )
    return Family(family.name, True, (case, *family.parts))


def _cases(variants: Document) -> str:
    return ", ".join(variants.require("cases").fields())


def as_label(value: object) -> str:
    """A value of a config as families.yaml writes it: `0`, `true`, `rope`; a string "0" quoted."""
    if isinstance(value, str) and value.isidentifier() and value not in ("true", "false", "null"):
        return value
    return json.dumps(value)
