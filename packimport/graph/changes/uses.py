"""Uses: the nodes that rotate by two constants, each with the layers that it serves."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from packimport.graph.attention import Attention
from packimport.graph.forms import group_query_attention, rotary_embedding
from packimport.graph.node import Node
from packimport.graph.onnx_file import OnnxFile
from packimport.graph.ops import GROUP_QUERY_ATTENTION
from packimport.graph.site import Site

# Form ─▶ which inputs are cos and sin.
TABLE_INPUTS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {group_query_attention.FORM: (7, 8), rotary_embedding.FORM: (2, 3)}
)
_TOTAL_LENGTH = 6


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Use:
    """One node that rotates.

    attention: the layer it serves. heads: of the value it rotates; 0 where not stated.
    """

    node: Node
    attention: Attention
    layer: int
    form: str
    heads: int

    @property
    def table_inputs(self) -> tuple[int, int]:
        """Which inputs of the node are cos and sin."""
        return TABLE_INPUTS[self.form]

    @property
    def total_length(self) -> str:
        """The value that holds the total length of the call, past included: one int32."""
        return self.attention.node.input(_TOTAL_LENGTH)


def uses(file: OnnxFile, attentions: Iterable[Attention]) -> Iterator[Use]:
    """Every rotating node of the main graph whose layer is known, once per layer it serves."""
    for attention in attentions:
        node, layer = attention.node, attention.layer
        if (node.domain, node.op) != GROUP_QUERY_ATTENTION or layer is None:
            continue
        heads = node.integer("num_heads", 0)
        if attention.do_rotary:
            form = group_query_attention.FORM
            yield Use(node=node, attention=attention, layer=layer, form=form, heads=heads)
        form = rotary_embedding.FORM
        for found in attention.query:
            yield Use(node=found, attention=attention, layer=layer, form=form, heads=heads)
        heads = node.integer("kv_num_heads", 0)
        for found in attention.key:
            yield Use(node=found, attention=attention, layer=layer, form=form, heads=heads)


def is_changeable(site: Site) -> bool:
    """Whether the nodes of a site can be given other tables: they are nodes of the main graph
    that take one whole table, at every length of call.
    """
    table = site.table
    return (
        site.form in TABLE_INPUTS
        and not site.branch
        and site.encoding == "pairs"
        and site.length is None
        and table is not None
        and len(table.cos.shape) == 2
        and (table.start, table.stop) == (0, table.cos.shape[0])
    )
