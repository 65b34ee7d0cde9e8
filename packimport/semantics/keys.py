"""Keys: which keys of a config the reader understands, and which bear on position."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from packimport.pack.documents import Document
from packimport.semantics.families import Family, as_label, knowledge, spellings

# The blocks that a config may keep its schedule in; transformers 5 writes the second.
BLOCKS = ("rope_scaling", "rope_parameters")
# Kept in a declaration beside what bears on position: what names the model and its sizes.
_NAMES = ("model_type", "architectures")


def declaring_keys() -> tuple[str, ...]:
    """The keys of RoPE, each of which makes a config declare a schedule."""
    return *BLOCKS, *spellings("theta"), *spellings("partial"), *spellings("rotary_dim")


def declares(config: Document) -> bool:
    """Whether a config has any key of RoPE that says something."""
    return any(
        (node := config.get(key)) is not None and node.value != {} for key in declaring_keys()
    )


def declared_config(config: Document, family: Family) -> dict[str, object]:
    """The keys of a config that bear on position or on sizes, verbatim.

    Read again, they say the same.
    """
    known = known_keys(family) | set(_NAMES)
    suspicious = re.compile(knowledge().require("suspicious").text())
    return {
        key: node.value
        for key, node in config.fields().items()
        if key in known or suspicious.search(key.lower())
    }


def check_keys(config: Document, family: Family) -> None:
    """Refuse a key that bears on position and that nothing here understands.

    Raises DocumentError at the first such key.
    """
    known = known_keys(family)
    allowed = knowledge().require("harmless").fields() | family.merged("keys")
    suspicious = re.compile(knowledge().require("suspicious").text())
    patterns = re.compile(knowledge().require("patterns").text())
    for key, node in config.fields().items():
        if key in known or node.value is None:
            continue
        if key in allowed:
            _check_harmless(node, allowed[key], family)
        elif suspicious.search(key.lower()) or (not family.known and patterns.search(key.lower())):
            raise node.error(
                f"this key bears on position and is not understood for family {family.name}",
                fix="packimport can't tell which table is right.",
            )


def _check_harmless(node: Document, values: Document, family: Family) -> None:
    if values.value != "any" and not any(_same(node.value, v.value) for v in values.items()):
        raise node.error(
            f"this value bears on position and is not understood for family {family.name}",
            allowed=", ".join(as_label(v.value) for v in values.items()),
        )


def _same(one: object, other: object) -> bool:
    """Equal, and of the same kind: 0 is not false."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def known_keys(family: Family) -> frozenset[str]:
    """The keys of a config that the reader reads for `family`."""
    keys = {"original_max_position_embeddings", "layer_types", *BLOCKS}
    keys |= {k for name in knowledge().require("spellings").fields() for k in spellings(name)}
    for field in ("theta_ratio", "rotary_key"):
        keys |= {family.text(field, "rope_theta")}
    if family.flag("latent") or family.get("rotary_key") is not None:
        keys |= {"qk_rope_head_dim", "qk_nope_head_dim"}
    if family.text("pairs", "") == "de-interleaved":
        keys.add("rope_interleave")
    keys |= {node.text() for node in family.merged("per_layer").values()}
    for field in ("layers", "schedules", "variants"):
        found = family.get(field)
        keys |= set() if found is None else set(_named_keys(found.value))
    return frozenset(keys)


def _named_keys(value: object) -> Iterator[str]:
    """Every string under a `key`, `theta_key` or `head_dim_key`, however deep."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key in ("key", "theta_key", "head_dim_key") and isinstance(item, str):
                yield item
            else:
                yield from _named_keys(item)
    elif isinstance(value, list):
        for item in value:
            yield from _named_keys(item)
