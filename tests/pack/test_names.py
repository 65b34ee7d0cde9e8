"""Rule for Windows: Microsoft, "Naming Files, Paths, and Namespaces"."""

from __future__ import annotations

import ntpath
import posixpath

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packimport.pack.names import collision, location_refusal, refusal, unportable


@pytest.mark.parametrize(
    "part",
    [
        "model.onnx",
        ".cache",
        "dd_metastate_0.state",
        "a b",
        " leading",
        "模型.onnx",
        "é" * 100,
        "console.json",
        "com10",
        "nullable",
        "a..b",
    ],
)
def test_ordinary_names_are_allowed(part: str) -> None:
    assert refusal(part) is None
    assert unportable(part) is None
    assert location_refusal(part) is None


@pytest.mark.parametrize(
    ("part", "why"),
    [
        ("", "no name"),
        (".", "no name"),
        ("..", "no name"),
        ("a\nb", "control"),
        ("a\x00b", "control"),
        ("\x1b[31mred", "control"),
        ("a\x7f", "control"),
        ("a\x9bb", "control"),
        ("a\u2028b", "control"),
        ("bad\udcff", "UTF-8"),
        ("a\\b", "backslash"),
        ("CON", "device"),
        ("nul", "device"),
        ("aux.json", "device"),
        ("Prn.tar.gz", "device"),
        ("COM1", "device"),
        ("lpt9.bin", "device"),
        ("COM¹", "device"),
        ("nul .txt", "device"),
        ("CONIN$", "device"),
    ],
)
def test_names_that_no_pack_may_have(part: str, why: str) -> None:
    assert why in (refusal(part) or "")


@pytest.mark.parametrize("part", ["a:b", "a?", "a*b", 'a"b', "<a", "a>", "a|b", "end.", "end "])
def test_names_that_windows_cannot_hold(part: str) -> None:
    assert refusal(part) is None
    assert unportable(part)
    assert location_refusal(part)


@pytest.mark.parametrize(
    "parts",
    [
        ("readme.md", "README.md"),
        ("\u00e9.bin", "e\u0301.bin"),  # one letter, composed and not
        ("a", "b", "A"),
    ],
)
def test_names_that_some_disk_takes_for_one(parts: tuple[str, ...]) -> None:
    assert collision(parts) == (parts[0], parts[-1])


def test_no_collision() -> None:
    assert collision(["a", "b", "a.b"]) is None


@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("", "empty"),
        ("/etc/passwd", "absolute"),
        ("\\\\server\\share", "absolute"),
        ("\\windows", "absolute"),
        ("C:\\weights", "drive"),
        ("C:weights", "drive"),
        ("file:///etc/passwd", "drive"),
        ("../x", "`..`"),
        ("a/../../x", "`..`"),
        ("a/..", "`..`"),
        ("a\\..\\x", "backslash"),
        ("./", "no file"),
        ("a/con/b", "device"),
        ("a\x00b", "control"),
    ],
)
def test_locations_that_are_not_followed(location: str, why: str) -> None:
    assert why in (location_refusal(location) or "")


_PARTS = st.sampled_from(["..", ".", "", "a", "b.c", "C:", "nul", "\\", "~", "\u00e9", "x y"])


@given(st.one_of(st.text(max_size=30), st.lists(_PARTS, max_size=6).map("/".join)))
@settings(deadline=None)
def test_an_allowed_location_stays_in_its_folder_on_every_system(location: str) -> None:
    if location_refusal(location) is None:
        # The path rules of Python's own posixpath and ntpath.
        assert posixpath.normpath(posixpath.join("/pack", location)).startswith("/pack/")
        assert ntpath.normpath(ntpath.join("C:\\pack", location)).startswith("C:\\pack\\")
        assert not any(ord(c) < 32 for c in location)
