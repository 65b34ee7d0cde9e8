"""Tables to bytes and back, bit for bit."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from builders import plain, tiny_pack
from graphs import PACKS, facts

from packimport.graph.encodings import DTYPES, decode, encode
from packimport.pack.container import open_container
from packimport.rope.schedule import Rope
from packimport.rope.tables import Table, table

ALL = sorted(DTYPES)
# The exponent of infinities and NaNs (IEEE 754; bfloat16 has that of float32).
INFINITE = {"float32": 0x7F800000, "float16": 0x7C00, "bfloat16": 0x7F80}


def exact(values: np.ndarray) -> np.ndarray:
    return values.astype(np.float64)


@pytest.mark.parametrize("name", ["oga-0.11.2-gemma3", "amd-oga-0.7.0.1-llama3-int4-dml"])
def test_encoding_what_was_decoded_gives_the_bytes_on_disk(name: str) -> None:
    container = open_container(PACKS / name)
    for site in facts(PACKS / name).sites:
        cos, sin = decode(site, container)
        new = encode(Table(exact(cos), exact(sin)), site.cos.dtype, site.encoding)
        for span, data in zip((site.cos, site.sin), new, strict=True):
            assert data == bytes(container.span(span.file, span.offset, span.length))


@pytest.mark.parametrize("dtype", ALL)
def test_every_finite_value_survives(dtype: str) -> None:
    numpy_type = DTYPES[dtype]
    bits = np.dtype(f"u{numpy_type.itemsize}")
    rng = np.random.default_rng(5)
    values = rng.integers(0, 2 ** (8 * bits.itemsize), 4096, dtype=bits).view(numpy_type)
    finite = values.view(bits) & INFINITE[dtype] != INFINITE[dtype]
    values = values[finite][:2048].reshape(-1, 8)
    cos, sin = encode(Table(exact(values), exact(values[::-1])), dtype)
    assert cos == values.tobytes()
    assert sin == values[::-1].tobytes()


@pytest.mark.parametrize("dtype", ALL)
def test_a_table_made_in_the_dtype_gives_the_same_bytes(dtype: str) -> None:
    rope = Rope(type="default", theta=10000.0, head_dim=16, rotary_dim=16)
    assert encode(table(rope, 300, dtype=DTYPES[dtype]), dtype) == encode(table(rope, 300), dtype)


@pytest.mark.parametrize("dtype", ALL)
def test_values_are_rounded_as_numpy_rounds(dtype: str) -> None:
    """numpy and ml_dtypes round to nearest, ties to even; ml_dtypes from float32 only."""
    cos, sin = (values.astype(np.float32) for values in plain(300, 8))
    new = encode(Table(exact(cos), exact(sin)), dtype)
    assert new == tuple(values.astype(DTYPES[dtype]).tobytes() for values in (cos, sin))


def test_a_tie_that_two_roundings_get_wrong() -> None:
    """1 + 2^-8 + 2^-40 lies above the middle of two bfloat16; float32 drops the last term."""
    value = np.full((1, 1), 1 + 2.0**-8 + 2.0**-40)
    cos, _ = encode(Table(value, value), "bfloat16")
    assert np.frombuffer(cos, ml_dtypes.bfloat16)[0] == 1 + 2.0**-7


def test_decoding_copies_nothing(tmp_path: Path) -> None:
    pack = tiny_pack(tmp_path / "p", inline=True)
    (site,) = facts(pack).sites
    cos, sin = decode(site, open_container(pack))
    for values in (cos, sin):
        assert not values.flags.owndata
        assert not values.flags.writeable
