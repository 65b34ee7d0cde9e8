"""Strand: what is behind a value that is cos or sin."""

from __future__ import annotations

from dataclasses import dataclass

from packimport.graph.frame import Value
from packimport.graph.node import Tensor
from packimport.graph.positions import Positions
from packimport.graph.site import ByLength
from packimport.graph.waves import Angles


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Factor:
    """What multiplies cos or sin: its value, and the constant that holds it."""

    value: float
    at: Value


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Strand:
    """cos or sin for one range of lengths: either a stored table or a function of angles.

    tensor:    the table; its last dim is entries, the others are rows.
    positions: how its rows are picked; None where it is handed on whole.
    function:  "Cos" or "Sin" of `angles`, by the node `label`.
    side:      which half of each row of the table is taken, 0 or 1; None for whole rows.
    rows:      how many of its rows a Slice leaves; None where it leaves all.
    mrope:     of positions in three axes: the layout, and how many pairs follow each; () for one.
    """

    tensor: Tensor | None = None
    positions: Positions | None = None
    side: int | None = None
    rows: int | None = None
    function: str = ""
    label: str = ""
    angles: Angles | None = None
    factors: tuple[Factor, ...] = ()
    layout: str = "pairs"
    length: ByLength | None = None
    mrope: tuple[int, ...] = ()
