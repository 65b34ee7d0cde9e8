"""Wiring: what a graph's nodes say about running it, beyond its inputs and outputs."""

from __future__ import annotations

from dataclasses import dataclass

from forward.carriers import find_carried, readers
from forward.genai_config import Decoder
from packimport.graph.body import Body
from packimport.graph.find import find_sites
from packimport.graph.node import MICROSOFT, STANDARD, Node
from packimport.graph.onnx_file import OnnxFile
from packimport.graph.ryzen_ai import DOMAINS
from packimport.pack.container import Container

_PAST_INPUTS = (3, 4)
# What measures the mask ─▶ the input of GroupQueryAttention that it is for.
_MEASURES = {(STANDARD, "ReduceSum"): 5, (STANDARD, "Shape"): 6}
_ARITHMETIC = {(STANDARD, op) for op in ("Cast", "Gather", "Sub", "Squeeze", "Unsqueeze")}
_QUANTISED = ("MatMulNBits", "DynamicQuantizeMatMul", "MatMulIntegerToFloat", "MatMulBnb4")


@dataclass(frozen=True, slots=True)
class Wiring:
    """What the nodes of a decoder's graph allow.

    shareable: pasts that GroupQueryAttention alone reads and continues: it writes new
               entries behind the old ones where past and present are one buffer. The
               number is the least length of that buffer.
    rolling:   those of them whose buffer may be shorter than the sequence.
    carried:   past ─▶ present of the states (states.py) that known nodes carry over any
               number of tokens.
    readers:   each input of the graph ─▶ the types of the ops that take it.
    by_length: whether a branch of the graph, or what chooses its RoPE table, may look at
               the length of a call, so that a text fed in parts may get other values than
               one fed at once.
    limits:    the lengths of call beyond which it goes over to another table.
    grows_from: the length beyond which its frequencies follow that of the call.
    quantised: whether it multiplies by weights of a few bits, or in int8.
    counted:   whether the mask is only summed and measured, for GroupQueryAttention: zeros
               behind its ones then change nothing.
    misnamed:  whether it may give two lengths one name. onnxruntime-genai 0.18's graphs
               with MultiHeadAttention do (repeat_kv), and onnxruntime then refuses to run
               a step of another length in the buffers that it had planned to use again.
    vendor:    domain and op of a node that the Ryzen AI runtime alone runs; None without one.
    """

    shareable: dict[str, int]
    rolling: frozenset[str]
    carried: dict[str, str]
    readers: dict[str, tuple[str, ...]]
    by_length: bool
    quantised: bool
    counted: bool
    misnamed: bool
    vendor: tuple[str, str] | None = None
    limits: tuple[int, ...] = ()
    grows_from: int | None = None

    def crossed(self, shortest: int, longest: int) -> int | None:
        """The first limit that lies between two lengths of call."""
        return next((limit for limit in self.limits if shortest <= limit < longest), None)

    def alike(self, shortest: int, longest: int) -> bool:
        """Whether calls of these lengths get the same tables."""
        beyond = self.grows_from is not None and self.grows_from < longest
        return shortest == longest or not (beyond or self.crossed(shortest, longest))


def read_wiring(container: Container, decoder: Decoder) -> Wiring:
    """The wiring of the decoder's graph; its weights are not read."""
    file = OnnxFile(container, decoder.graph)
    body = file.main
    shareable: dict[str, int] = {}
    rolling = set()
    for node in body.nodes(MICROSOFT, "GroupQueryAttention"):
        for index in _PAST_INPUTS:
            past = node.input(index)
            if not body.is_fed(past) or len(body.consumers.get(past, ())) != 1:
                continue
            shareable[past] = _window(node)
            if _window(node):
                rolling.add(past)
    names = (*((MICROSOFT, op) for op in _QUANTISED), (STANDARD, "MatMulInteger"))
    sites = find_sites(container, decoder.graph).sites
    limits = {site.length.limit for site in sites if site.length is not None}
    growths = [g for site in sites if site.waves is not None and (g := site.waves.growth)]
    return Wiring(
        shareable=shareable,
        rolling=frozenset(rolling),
        carried=find_carried(file),
        readers={name: readers(body, name) for name in body.inputs},
        by_length=bool(limits or growths) or any(True for _ in body.nodes(STANDARD, "If")),
        quantised=any(True for name in names for _ in body.nodes(*name)),
        counted=not body.children and _is_counted(body, decoder.attention_mask),
        misnamed=any(True for _ in body.nodes(MICROSOFT, "MultiHeadAttention")),
        vendor=next((op for part in file.bodies() for op in part.ops if op[0] in DOMAINS), None),
        limits=tuple(sorted(limits)),
        grows_from=min((int(growth.longest) for growth in growths), default=None),
    )


def _is_counted(body: Body, mask: str) -> bool:
    """Whether the mask is only summed for `seqlens_k` and measured for the total length."""
    takers = [body.node(index) for index in body.consumers.get(mask, ())]
    return mask not in body.outputs and all(
        (node.domain, node.op) in _MEASURES
        and _leads_to(body, node, _MEASURES[node.domain, node.op])
        for node in takers
    )


def _leads_to(body: Body, start: Node, index: int) -> bool:
    """Whether what a node makes ends, by arithmetic alone, in one input of the attentions."""
    todo = [start]
    while todo:
        made = todo.pop().outputs
        if any(name in body.outputs for name in made):
            return False
        for taker in (body.node(i) for name in made for i in body.consumers.get(name, ())):
            if (taker.domain, taker.op) in _ARITHMETIC:
                todo.append(taker)
            elif (taker.domain, taker.op) != (MICROSOFT, "GroupQueryAttention") or any(
                name in made for at, name in enumerate(taker.inputs) if at != index
            ):
                return False
    return True


def _window(node: Node) -> int:
    """The window of a cache that holds the newest positions alone; 0 where it holds all."""
    if not node.integer("sliding_window_cache", 0):
        return 0
    return max(node.integer("local_window_size", -1), 0)
