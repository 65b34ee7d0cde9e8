from __future__ import annotations

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from little_packs import edit_of

from packimport.errors import ContainerError
from packimport.pack.edits import Edit, by_file, merged

DATA = bytes(range(100))


def edit(offset: int, new: bytes, file: str = "f", reason: str = "a table") -> Edit:
    return edit_of(DATA, file, offset, new, reason)


def test_an_edit_knows_its_span_and_hash() -> None:
    one = edit(10, b"abc")
    assert (one.length, one.end) == (3, 13)
    # FIPS 180-4, the example of one block.
    assert one.new_sha256 == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert one.old_sha256 == hashlib.sha256(bytes([10, 11, 12])).hexdigest()


def test_edits_are_sorted_and_duplicates_merge_with_their_reasons() -> None:
    edits = [
        edit(50, b"xy", file="g"),
        edit(20, b"ab", reason="sin"),
        edit(4, b"ab", reason="cos"),
        edit(20, b"ab", reason="sin"),
        edit(20, b"ab", reason="sin of the other graph"),
    ]
    result = merged(edits)
    assert [(e.file, e.offset, e.reason) for e in result] == [
        ("f", 4, "cos"),
        ("f", 20, "sin; sin of the other graph"),
        ("g", 50, "a table"),
    ]


def test_neighbours_do_not_overlap() -> None:
    assert len(merged([edit(0, b"ab"), edit(2, b"cd"), edit(1, b"x", file="g")])) == 3


@pytest.mark.parametrize(
    "second",
    [
        edit(10, b"ABCe"),  # the same span, other bytes
        edit(10, b"ABC"),  # the same start, shorter
        edit(11, b"BC"),  # inside
        edit(13, b"DE"),  # over the end
        Edit(file="f", offset=10, new=b"ABCD", old_sha256="0" * 64, reason="other old bytes"),
    ],
)
def test_overlaps_that_differ_are_refused(second: Edit) -> None:
    first = edit(10, b"ABCD")
    for edits in ([first, second], [second, first]):
        with pytest.raises(ContainerError, match="overlap") as caught:
            merged(edits)
        assert caught.value.place == "f"


@given(
    st.lists(st.tuples(st.integers(0, 12), st.binary(min_size=1, max_size=4)), max_size=5),
)
@settings(deadline=None)
def test_merged_edits_give_the_same_bytes_in_any_order(spans: list[tuple[int, bytes]]) -> None:
    edits = [edit(offset, new) for offset, new in spans]

    def applied(order: list[Edit]) -> bytes:
        data = bytearray(DATA)
        for one in order:
            data[one.offset : one.end] = one.new
        return bytes(data)

    try:
        result = merged(edits)
    except ContainerError:
        # Only spans of which two overlap and are not equal may be refused.
        assert any(
            a.offset < b.end and b.offset < a.end and (a.offset, a.new) != (b.offset, b.new)
            for a in edits
            for b in edits
        )
    else:
        assert applied(list(result)) == applied(edits) == applied(edits[::-1])


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (edit(0, b"x", file="unknown"), "lacks"),
        (edit(98, b"xyz"), "not inside"),
        (edit(-1, b"x"), "not inside"),
        (edit(100, b"x"), "not inside"),
        (edit(2**70, b"x"), "not inside"),
        (edit(5, b""), "not inside"),
    ],
)
def test_edits_outside_the_files_are_refused(bad: Edit, message: str) -> None:
    with pytest.raises(ContainerError, match=message) as caught:
        by_file([bad], {"f": 100, "g": 100})
    assert caught.value.place == bad.file


def test_edits_are_grouped_by_file() -> None:
    first, second, last = edit(97, b"xyz"), edit(0, b"a"), edit(1, b"b", file="g")
    assert by_file([first, last, second], {"f": 100, "g": 2}) == {
        "f": (second, first),
        "g": (last,),
    }
