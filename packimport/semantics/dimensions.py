"""Dimensions: the sizes of a model, each from where it is stated."""

from __future__ import annotations

from dataclasses import dataclass

from packimport.pack.documents import Document
from packimport.semantics.families import Family, spellings
from packimport.semantics.genai import GenaiConfig

_SIZES = (
    "hidden_size",
    "num_attention_heads",
    "num_key_value_heads",
    "num_hidden_layers",
    "max_position_embeddings",
)
# Beyond every model, and small enough that a hostile config can't fill the memory.
MAXIMA = {"num_hidden_layers": 10_000, "head_dim": 2**16}


@dataclass(frozen=True, slots=True)
class Size:
    """A number, and the value it was read or derived from."""

    value: int
    node: Document


@dataclass(frozen=True, slots=True)
class Dimensions:
    """The sizes of the text model, by the names of Semantics; only those that are known."""

    sizes: dict[str, Size]

    def value(self, name: str) -> int | None:
        """The size of that name, or None."""
        found = self.sizes.get(name)
        return None if found is None else found.value

    def require(self, name: str, config: Document) -> Size:
        """The size of that name. Raises DocumentError where nothing states it."""
        found = self.sizes.get(name)
        if found is None:
            raise config.error("this key is missing", key=name, allowed="a positive integer")
        return found


def stated(config: Document, name: str, *, agree: bool = True) -> Document | None:
    """The value of the first spelling of `name` that a config has.

    Raises DocumentError where another spelling says something else.
    """
    found = [node for key in spellings(name) if (node := config.get(key)) is not None]
    if not found:
        return None
    for other in found[1:] if agree else ():
        if other.value != found[0].value:
            raise other.error(
                f"contradicts {found[0].pointer}, which says the same thing in other words",
                allowed=str(found[0].value),
            )
    return found[0]


def read_dimensions(config: Document, family: Family, genai: GenaiConfig) -> Dimensions:
    """The sizes by the config, else by its family, else by genai_config.

    Raises DocumentError for a size that is not a positive integer.
    """
    defaults = family.get("dimensions")
    sizes: dict[str, Size] = {}
    for name in _SIZES:
        # Qwen's first configs state a training length beside the longest one.
        node = stated(config, name, agree=name != "max_position_embeddings")
        if node is None and defaults is not None:
            node = defaults.get(name)
        if node is None:
            node = genai.dimensions.get(name)
        if node is not None:
            sizes[name] = Size(node.integer(1, MAXIMA.get(name, 2**31 - 1)), node)
    head = _head_dim(config, family, sizes, genai)
    if head is not None:
        sizes["head_dim"] = head
    return Dimensions(sizes)


def _head_dim(
    config: Document, family: Family, sizes: dict[str, Size], genai: GenaiConfig
) -> Size | None:
    if family.flag("latent"):
        # The slice that rotates is a head of its own: transformers calls it head_dim, too.
        slice_ = config.require("qk_rope_head_dim", allowed="a positive integer")
        return Size(slice_.integer(1, MAXIMA["head_dim"]), slice_)
    node = stated(config, "head_dim")
    defaults = family.get("dimensions")
    if node is None and defaults is not None and not config.has("head_dim"):
        node = defaults.get("head_dim")
    hidden, heads = sizes.get("hidden_size"), sizes.get("num_attention_heads")
    if node is None and hidden is not None and heads is not None:
        if hidden.value % heads.value:
            if family.still:
                return None
            raise hidden.node.error(
                f"not a multiple of num_attention_heads, {heads.value}, and head_dim is not stated",
                allowed=f"a multiple of {heads.value}, or head_dim beside it",
            )
        if hidden.value // heads.value > MAXIMA["head_dim"]:
            raise hidden.node.error(
                f"too large for {heads.value} heads", allowed=f"{MAXIMA['head_dim']} entries a head"
            )
        return Size(hidden.value // heads.value, hidden.node)
    if node is None:
        node = genai.dimensions.get("head_dim")
    return None if node is None else Size(node.integer(1, MAXIMA["head_dim"]), node)


def check_foreign(
    config: Document, dimensions: Dimensions, head_dims: set[int], genai: GenaiConfig
) -> str | None:
    """Refuse a config whose sizes are not those of the pack.

    head_dims: every head size that the config gives to some layer.

    Returns a note where the pack has a multiple of the config's key-value heads, since
    exporters repeat them. Raises DocumentError at the key of genai_config.
    """
    note = None
    for name, node in genai.dimensions.items():
        if name == "head_dim":
            allowed = head_dims
        else:
            size = dimensions.sizes.get(name)
            allowed = set() if size is None else {size.value}
        if not allowed or node.integer(1) in allowed:
            continue
        said = " or ".join(map(str, sorted(allowed)))
        if name == "num_key_value_heads" and _is_repeated(node.integer(1), dimensions):
            note = f"{node.place} says {node.value}, {config.file} says {said}"
            continue
        raise node.error(
            f"the config is that of another model: {config.file} gives {name} {said}",
            allowed=said,
            fix="Name the config of this pack's model with --config.",
        )
    return note


def _is_repeated(heads: int, dimensions: Dimensions) -> bool:
    """Whether so many key-value heads are those of the config, each several times."""
    stated, whole = (
        dimensions.value(name) for name in ("num_key_value_heads", "num_attention_heads")
    )
    is_multiple = stated is not None and heads % stated == 0
    return is_multiple and (whole is None or (heads <= whole and whole % heads == 0))
