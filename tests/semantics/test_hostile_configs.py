"""Whatever stands in a config, reading it ends in Semantics or in an error of ours."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from little_configs import reading

from packimport.errors import DocumentError
from packimport.rope.frequencies import frequencies

ROWS = [
    row["config"]
    for row in json.loads(
        (Path(__file__).parent.parent / "data" / "rope_configs.json").read_text(encoding="utf-8")
    )
]
WORDS = ["", "yarn", "linear", "longrope", "full_attention", "none", "llama", "gemma3_text"]
JUNK = st.recursive(
    st.none()
    | st.booleans()
    | st.sampled_from([0, 1, -1, 3, 64, 2**53, 10**25, 0.0, 0.5, -2.5, 1e308, 5e-324])
    | st.floats()
    | st.sampled_from(WORDS),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["rope_type", "factor", *WORDS]), inner, max_size=3)
    ),
    max_leaves=5,
)
KEYS = sorted({key for row in ROWS for key in row} | {"rope_parameters", "text_config"})


def places(value: Any) -> list[tuple[Any, Any]]:
    """Every (holder, key) within a value."""
    pairs: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        pairs += [(value, key) for key in value]
    elif isinstance(value, list):
        pairs += [(value, index) for index in range(min(len(value), 3))]
    return pairs + [p for holder, key in pairs for p in places(holder[key])]


@settings(deadline=None)  # the first example loads families.yaml
@given(st.data())
def test_a_spoilt_config_ends_in_an_error_of_ours(data: st.DataObject) -> None:
    config = copy.deepcopy(data.draw(st.sampled_from(ROWS)))
    for _ in range(data.draw(st.integers(1, 3))):
        if data.draw(st.booleans()):
            config[data.draw(st.sampled_from(KEYS))] = data.draw(JUNK)
        elif found := places(config):
            holder, key = data.draw(st.sampled_from(found))
            holder[key] = data.draw(JUNK)
    try:
        read = reading(config)
    except DocumentError as error:
        assert str(error.place).startswith("config.json#")
        return
    for rope in set(read.layers) - {None}:
        assert frequencies(rope).inv_freq.shape == (rope.pairs,)
    if read.declared is not None:
        assert reading(read.declared).layers == read.layers
