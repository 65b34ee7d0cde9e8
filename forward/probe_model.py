"""Tiny models: one rotation alone, as a site of a pack does it.

    made = tiny_model(site, x, positions, rows)
    y = made.run()

What is stored comes in as inputs: rows of the table, or the frequencies that the graph
computes cos and sin from. No node or library of the pack itself is run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from forward.session import open_model
from packimport.graph.forms import plain_ops
from packimport.graph.forms.rotary_embedding import ONNX_FORM
from packimport.graph.node import MICROSOFT, STANDARD
from packimport.graph.onnx_file import model_message, node_message
from packimport.graph.protos import DTYPES
from packimport.graph.site import Site, Waves

Floats = npt.NDArray[np.float32]
Positions = npt.NDArray[np.int64]
Array = npt.NDArray[np.generic]

CONTRIB, ONNX, MROPE = (
    "com.microsoft RotaryEmbedding",
    "RotaryEmbedding of ONNX",
    "com.microsoft MRotaryEmbedding",
)
PLAIN = plain_ops.FORM
# The oldest version of ONNX's own ops that has all that is used here; its RotaryEmbedding.
_OPSET, _ROTARY_OPSET = 18, 23
_NUMBERS = {name: number for number, name in DTYPES.items()}


@dataclass(slots=True)
class TinyModel:
    """A model under construction, and what it is fed.

    op: what rotates in it.
    """

    op: str
    shape: tuple[int, ...]
    nodes: list[bytes] = field(default_factory=list)
    feeds: dict[str, Array] = field(default_factory=dict)

    def feed(self, name: str, values: Array) -> str:
        """Add an input; its name."""
        self.feeds[name] = values
        return name

    def node(
        self,
        op: str,
        inputs: Sequence[str],
        output: str,
        domain: str = STANDARD,
        /,
        **integers: int | Sequence[int],
    ) -> str:
        """Add a node; its output."""
        made = node_message(op, inputs, [output], output, domain=domain, integers=integers)
        self.nodes.append(made)
        return output

    def run(self) -> Floats:
        """The rotated x, float32 of its shape. Raises GraphError where onnxruntime refuses."""
        inputs: Mapping[str, tuple[str, tuple[int, ...]]] = {
            name: (values.dtype.name, values.shape) for name, values in self.feeds.items()
        }
        opsets = {STANDARD: _ROTARY_OPSET if self.op == ONNX else _OPSET, MICROSOFT: 1}
        model = model_message(self.nodes, inputs, {"y": "float32"}, opsets)
        session = open_model(model, f"the rotation alone, by {self.op}")
        feeds = {name: session.value(values) for name, values in self.feeds.items()}
        result: Floats = session.run(feeds, ["y"])["y"].array().astype(np.float32)
        return result.reshape(self.shape)


def op_of(site: Site) -> str:
    """What rotates in the tiny model of a site.

    The attention ops that rotate by themselves do so as com.microsoft's RotaryEmbedding does.
    """
    if site.mrope is not None:
        return MROPE
    if site.form == ONNX_FORM:
        return ONNX
    # That op rotates the start of a head alone.
    return PLAIN if site.form == PLAIN or site.trailing else CONTRIB


def tiny_model(
    site: Site,
    x: Floats,
    positions: Positions,
    rows: tuple[Array, Array] | None,
    *,
    interleaved: bool,
) -> TinyModel:
    """The model of one site.

    x:         [tokens, heads, head_dim].
    positions: [tokens], or [3, tokens] of a site with positions in three axes.
    rows:      cos and sin [rows, pairs] of every position from 0 on, of a site with a table;
               of any float dtype: what is looked at is widened to float32.
    interleaved: how it pairs entries.
    """
    made = TinyModel(op_of(site), x.shape)
    tokens, heads, _ = x.shape
    ids: Positions = np.arange(tokens)
    if rows is None:
        assert site.waves is not None
        cos, sin = _computed(made, site.waves, positions)
    else:
        # Only the rows that are looked at go in: a table may have 131072 of them.
        there, ids = np.unique(positions, return_inverse=True)
        cos, sin = (
            made.feed(name, part[there].astype(np.float32))
            for name, part in zip(("cos", "sin"), rows, strict=True)
        )
        ids = ids.reshape(positions.shape).astype(np.int64)
    if made.op == PLAIN:
        if rows is not None:
            made.feed("ids", ids)
            cos, sin = (
                made.node("Gather", [table, "ids"], f"{table}_rows") for table in (cos, sin)
            )
        _plain(made, site, x, (cos, sin), interleaved)
    else:
        made.feed("x", x.reshape(1, tokens, -1))
        made.feed("ids", ids.reshape(*ids.shape[:-1], 1, tokens))
        integers = {"interleaved": int(interleaved)}
        if site.head_dim is None:
            integers |= {"rotary_embedding_dim": site.rotary_dim, "num_heads": heads}
        elif made.op == MROPE:
            integers |= {"num_heads": heads * x.shape[-1] // site.head_dim}
        # Else the op cuts x into heads of 2 * pairs entries, as the node of the pack does.
        _op(made, site, (cos, sin), integers)
    return made


def _computed(made: TinyModel, waves: Waves, positions: Positions) -> tuple[str, str]:
    """cos and sin [tokens, pairs] as the graph computes them, at every position anew."""

    def short(value: str) -> str:
        # The product of two shorter floats is exact in float32, and rounded once after it.
        if waves.dtype == "float32":
            return value
        made.node("Cast", [value], f"{value}_short", to=_NUMBERS[waves.dtype])
        return made.node("Cast", [f"{value}_short"], f"{value}_wide", to=_NUMBERS["float32"])

    made.feed("positions", positions[:, None])
    made.feed("frequencies", np.array(waves.values, np.float32)[None])
    at = made.node("Cast", ["positions"], "at", to=_NUMBERS["float32"])
    angle = short(made.node("Mul", [short(at), short("frequencies")], "angle"))
    parts = []
    for name, factor in (("Cos", waves.cos_factor), ("Sin", waves.sin_factor)):
        wave, by = made.node(name, [angle], name), np.array(factor, np.float32)
        parts.append(made.node("Mul", [wave, made.feed(f"{name}_factor", by)], f"{name}_scaled"))
    return parts[0], parts[1]


def _op(made: TinyModel, site: Site, tables: tuple[str, str], integers: Mapping[str, int]) -> None:
    """The op that rotates."""
    if made.op == ONNX:
        made.node("RotaryEmbedding", ["x", *tables, "ids"], "y", **integers)
    elif site.mrope is None:
        made.node("RotaryEmbedding", ["x", "ids", *tables], "y", MICROSOFT, **integers)
    else:
        layout, *sections = site.mrope
        axes: dict[str, int | list[int]] = {"mrope_layout": layout, "mrope_section": sections}
        inputs = ["x", "ids", *tables]
        made.node("MRotaryEmbedding", inputs, "y", MICROSOFT, **integers, **axes)


def _plain(
    made: TinyModel, site: Site, x: Floats, tables: tuple[str, str], interleaved: bool
) -> None:
    """a cos - b sin and b cos + a sin, of the entries that the graph pairs."""
    width, head_dim = site.rotary_dim, x.shape[-1]
    rotated = np.arange(width) + (head_dim - width if site.trailing else 0)
    pairs = rotated.reshape(-1, 2).T if interleaved else rotated.reshape(2, -1)
    rest = np.setdiff1d(np.arange(head_dim), rotated)
    order = np.argsort(np.concatenate([*pairs, rest]))
    made.feed("x", x)
    made.feed("one", np.array([1]))
    cos, sin = (made.node("Unsqueeze", [table, "one"], f"{table}_by_head") for table in tables)
    for name, entries in (("a", pairs[0]), ("b", pairs[1]), ("rest", rest)):
        made.node("Gather", ["x", made.feed(f"{name}_at", entries)], name, axis=2)
    for value in "ab":
        made.node("Mul", [value, cos], f"{value}_cos")
        made.node("Mul", [value, sin], f"{value}_sin")
    made.node("Sub", ["a_cos", "b_sin"], "first")
    made.node("Add", ["b_cos", "a_sin"], "second")
    made.node("Concat", ["first", "second", "rest"], "turned", axis=2)
    made.node("Gather", ["turned", made.feed("order", order)], "y", axis=2)
