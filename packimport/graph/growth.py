"""Growth: frequencies whose base follows the length of the call, as `dynamic` has them.

    base = theta * (factor * length / longest - (factor - 1)) ** (d / (d - 2))
    frequencies = 1 / base ** (arange(0, d, 2) / d)

Read is this arithmetic, node by node and in this order, with constants that fit each
other. Source of the formula: transformers 5.24.0.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from packimport.graph.constants import Array, Constants
from packimport.graph.frame import Trail, Value, resolve
from packimport.graph.lengths import Lengths
from packimport.graph.node import STANDARD
from packimport.graph.site import Growth

# From the base back to the length: the op of each step, and what it takes besides.
_STEPS = (
    ("Mul", "theta"),
    ("Pow", "power"),
    ("Sub", "less"),
    ("Div", "longest"),
    ("Mul", "factor"),
)


def read_growth(
    value: Value, constants: Constants, lengths: Lengths, trail: Trail
) -> Growth | None:
    """The growth behind a value; None where it is none. Its nodes are added to `trail`."""
    passed = Trail()
    inverse = _operands(value, "Div", passed)
    if inverse is None or constants.scalar(inverse[0]) != 1:
        return None
    powers = _operands(inverse[1], "Pow", passed)
    if powers is None:
        return None
    base, exponents = powers[0], constants.array(powers[1])
    if exponents is None or exponents.ndim != 1:
        return None
    numbers: dict[str, float] = {}
    for op, name in _STEPS:
        operands = _operands(base, op, passed)
        number = None if operands is None else constants.scalar(operands[1])
        if operands is None or number is None:
            return None
        numbers[name] = number
        base = operands[0]
    if lengths.offset(base) != 0:
        return None
    growth = Growth(
        theta=numbers["theta"],
        factor=numbers["factor"],
        longest=numbers["longest"],
        pairs=len(exponents),
    )
    if not _fits(growth, numbers, exponents):
        return None
    trail.nodes.update(passed.nodes)
    trail.values.update(passed.values)
    return growth


def _operands(value: Value, op: str, trail: Trail) -> tuple[Value, Value] | None:
    node = value.node
    if node is None or (node.domain, node.op) != (STANDARD, op):
        return None
    trail.nodes.add((value.frame.body, node.index))
    return resolve(value.frame, node.input(0), trail), resolve(value.frame, node.input(1), trail)


def _fits(growth: Growth, numbers: Mapping[str, float], exponents: Array) -> bool:
    """Whether the constants of the formula belong to one rotary dimension and one factor."""
    d = 2 * growth.pairs
    if d < 4 or growth.factor < 1 or growth.longest < 1 or growth.theta <= 0:
        return False
    expected = {"less": growth.factor - 1, "power": d / (d - 2)}
    even = np.arange(0, d, 2).astype(np.float32) / np.float32(d)
    return bool(np.array_equal(exponents.astype(np.float32), even)) and all(
        np.float32(numbers[name]) == np.float32(number) for name, number in expected.items()
    )
