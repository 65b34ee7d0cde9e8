"""Blocks: `rope_scaling` and `rope_parameters`, as what they say to one kind of layer."""

from __future__ import annotations

from dataclasses import dataclass

from packimport.pack.documents import Document
from packimport.semantics.families import Family
from packimport.semantics.keys import BLOCKS
from packimport.semantics.labels import Label, Schedule

# Spellings of a type, by the name that rope/ has for it.
ALIASES = {"su": "longrope", "deepseek_yarn": "yarn", "mrope": "default"}
TYPE_KEYS = ("rope_type", "type")
# What a block says of the base and the width may stand in one block and not in the other.
_SHAPE = frozenset({"rope_theta", "partial_rotary_factor", *TYPE_KEYS})


@dataclass(frozen=True, slots=True)
class Block:
    """What the blocks of a config say to one kind of layer.

    scaling: the objects that state its type and scaling; they agree.
    shape:   those that state its base and width: `scaling`, or a flat block
             that scales other layers.
    flat:    whether they stand for the whole model, not for a layer type.
    """

    scaling: tuple[Document, ...]
    shape: tuple[Document, ...]
    flat: bool

    def get(self, key: str) -> Document | None:
        """A key of the scaling, or None where it is absent or null."""
        return next((d for doc in self.scaling if (d := doc.get(key)) is not None), None)

    def shape_key(self, key: str) -> Document | None:
        """A key of base or width, or None where it is absent or null."""
        return next((d for doc in self.shape if (d := doc.get(key)) is not None), None)

    def fields(self) -> dict[str, Document]:
        """All keys of the scaling."""
        result: dict[str, Document] = {}
        for document in reversed(self.scaling):
            result |= document.fields()
        return result


@dataclass(frozen=True, slots=True)
class Blocks:
    """The blocks of a config: each flat, or nested by layer type."""

    found: tuple[Document, ...]
    nested: tuple[bool, ...]

    def any_nested(self) -> bool:
        """Whether a block is nested by layer type."""
        return any(self.nested)

    def block_for(self, label: Label, schedule: Schedule, family: Family) -> Block | None:
        """What the blocks say to layers of that label; None: they don't rotate.

        Raises DocumentError where two blocks disagree, and where a nested one
        has no entry for the label.
        """
        scaling: list[Document] = []
        shape: list[Document] = []
        for document, nested in zip(self.found, self.nested, strict=True):
            if nested:
                entry = _entry(document, label)
                if entry.value is None:
                    return None
                scaling.append(entry)
                shape.append(entry)
            else:
                shape.append(document)
                if _applies(schedule):
                    scaling.append(document)
        if len(scaling) == 2:
            _check_agree(*scaling)
        if not self.found and (default := family.get("block")) is not None and _applies(schedule):
            scaling.append(default)
            shape.append(default)
        return Block(tuple(scaling), tuple(shape), not self.any_nested())


def _applies(schedule: Schedule) -> bool:
    """Whether a flat block scales the layers of a label."""
    field = schedule.get("block")
    return field is None or field.boolean()


def read_blocks(config: Document, family: Family, labels: tuple[Label, ...]) -> Blocks:
    """The blocks of a config; null and {} say nothing.

    Raises DocumentError for a block that is no object, one that mixes entries
    by layer type with others, and a flat one in a family that reads none.
    """
    names = {name for label in labels for name in (label.name, label.raw)}
    schedules = family.get("schedules")
    names |= set() if schedules is None else set(schedules.fields())
    found, nested = [], []
    for key in BLOCKS:
        block = config.get(key)
        if block is None:
            continue
        if not block.fields():
            _check_empty(block, key, family)
            continue
        found.append(block)
        nested.append(_is_nested(block, names))
        if nested[-1]:
            _check_reads_nested(block, key, family)
        if not nested[-1] and not _reads_flat(family, key):
            raise block.error(
                f"family {family.name} reads {key} per layer type only",
                allowed=", ".join(sorted(names)),
                fix="Nest the block under each layer type that it is meant for.",
            )
    return Blocks(tuple(found), tuple(nested))


def _check_reads_nested(block: Document, key: str, family: Family) -> None:
    """Refuse a block nested by layer type where the family's code reads none there."""
    one = family.known and family.get("schedules") is None
    if one or (key == "rope_scaling" and not family.flag("flat_parameters", True)):
        raise block.error(
            f"nested by layer type, and transformers' code for {family.name} reads no such {key}",
            allowed="one block for all layers" if one else "it under rope_parameters",
        )


def _reads_flat(family: Family, key: str) -> bool:
    """Whether the family's code reads a block of that key that is not nested by layer type."""
    own = key != "rope_parameters" or family.flag("flat_parameters", True)
    return own and family.flag("flat", True)


def _check_empty(block: Document, key: str, family: Family) -> None:
    """An empty block says nothing, unless it takes the place of the one that the family has.

    Source: transformers 5.24.0, whose classes set theirs where `rope_parameters` is None.
    """
    replaces = key == "rope_parameters" and family.get("block") is not None
    if replaces or not family.flag("flat", True):
        raise block.error(
            f"an empty block: transformers does not take the schedule of family {family.name} then",
            allowed="a whole block, or null where the family's own is meant",
        )


def _is_nested(block: Document, names: set[str]) -> bool:
    fields = block.fields()
    only_objects = all(node.is_object or node.value is None for node in fields.values()) and any(
        node.is_object for node in fields.values()
    )
    if not only_objects and not fields.keys() & names:
        return False
    for key, node in fields.items():
        if key not in names:
            raise node.error(
                "stands among blocks of layer types and is none",
                allowed=f"an entry for one of: {', '.join(sorted(names))}",
            )
        if node.value is not None:
            node.fields()
    return True


def _entry(block: Document, label: Label) -> Document:
    for name in (label.name, label.raw):
        if block.has(name):
            return block.require(name)
    raise block.error(
        "no entry for a layer type that the model has", key=label.name, allowed="an object or null"
    )


def _check_agree(one: Document, other: Document) -> None:
    """Two blocks may both be there as long as neither adds to what the other says."""
    first, second = _said(one), _said(other)
    for key in first.keys() | second.keys():
        a, b = first.get(key), second.get(key)
        if a is not None and b is not None and type_name(a) == type_name(b):
            continue
        if key in _SHAPE and (a is None or b is None):
            continue
        node, said = (a, b) if a is not None else (b, None)
        assert node is not None
        against = other.place if node is a else one.place
        raise node.error(
            f"contradicts {against}: two blocks of RoPE that disagree",
            allowed="nothing, as there" if said is None else f"{said.value}, as there",
            fix="Keep the block that the model was trained with.",
        )


def _said(block: Document) -> dict[str, Document]:
    """The keys of a block that say something, with the type under one name."""
    fields = {key: node for key, node in block.fields().items() if node.value is not None}
    kind = fields.pop("type", None)
    if kind is not None:
        fields.setdefault("rope_type", kind)
    return fields


def type_name(node: Document) -> object:
    """A value of a block; a type by its usual name, so that two spellings are equal."""
    if isinstance(node.value, str):
        return ALIASES.get(node.value, node.value)
    return node.value


def check_types(block: Block) -> Document | None:
    """The value that states the type of a block; None where nothing does.

    Raises DocumentError where `rope_type` and `type` disagree.
    """
    nodes = [n for doc in block.scaling for key in TYPE_KEYS if (n := doc.get(key)) is not None]
    for node in nodes[1:]:
        if type_name(node) != type_name(nodes[0]):
            raise node.error(
                f"contradicts {nodes[0].pointer}",
                allowed=f"{nodes[0].value}, as there",
                fix="Engines differ in which of the two they take: keep the right one.",
            )
    return nodes[0] if nodes else None
