"""Strict JSON and YAML, and values that know their place."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from packimport.errors import DependencyError, DocumentError
from packimport.pack import schemas
from packimport.pack.documents import (
    Document,
    json_text,
    load_json,
    load_schema,
    load_yaml,
    read_json,
    schema_path,
    validate,
    write_json,
)


def refused(source: str | bytes) -> DocumentError:
    with pytest.raises(DocumentError) as caught:
        read_json(source, "f.json")
    return caught.value


@pytest.mark.parametrize(
    ("source", "place"),
    [
        ('{"a": 1, "a": 1}', "f.json#/a"),
        ('{"x": [0, {"a/b": 1, "c": {}, "a/b": 2}]}', "f.json#/x/1/a~1b"),
        ('{"x": {"~": 1, "~": 2}, "y": {"b": 1, "b": 2}}', "f.json#/x/~0"),
        ('{"a": NaN}', "f.json#/a"),
        ("[1, -Infinity]", "f.json#/1"),
        ("[[], {}, [Infinity]]", "f.json#/2/0"),
        ('{"a": 1e999}', "f.json#/a"),
        ('{"a": -1e999}', "f.json#/a"),
        ('{"a": ' + "9" * 65 + "}", "f.json#/a"),
        ('{"a": 0.' + "0" * 65 + "}", "f.json#/a"),
        ('{"a": "\\ud800"}', "f.json#/a"),
        ('{"b": {"\\udfff": 1}}', "f.json#/b"),
        ("", "f.json:1:1"),
        ('{"a": 1, 2}', "f.json:1:10"),
        ('{\n  "a": 1\n  "b": 2\n}', "f.json:3:3"),
        ("{'a': 1}", "f.json:1:2"),
        ("[1] [2]", "f.json:1:5"),
        ("[01]", "f.json:1:3"),
        ('["a\nb"]', "f.json:1:4"),
        ("// a\n1", "f.json:1:1"),
    ],
)
def test_malformed_json_is_refused_at_its_place(source: str, place: str) -> None:
    assert refused(source).place == place
    assert refused(source.encode()).place == place


@pytest.mark.parametrize(
    ("source", "word"),
    [
        (b'\xef\xbb\xbf{"a": 1}', "byte order mark"),
        ('{"a": 1}'.encode("utf-16"), "UTF-16"),
        ('{"a": 1}'.encode("utf-16-le"), "UTF-16"),
        ('{"a": 1}'.encode("utf-16-be"), "UTF-16"),
        ('{"a": 1}'.encode("utf-32"), "UTF-16 or UTF-32"),
        (b'{"a": "\xff"}', "byte 7 is not UTF-8"),
    ],
)
def test_other_encodings_are_refused(source: bytes, word: str) -> None:
    assert word in str(refused(source))


@pytest.mark.parametrize("depth", [65, 200_000])
@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}")])
def test_deep_nesting_is_refused_before_it_is_parsed(
    depth: int, opening: str, closing: str
) -> None:
    error = refused(opening * depth + "1" + closing * depth)
    assert error.message == "nested too deep"
    assert error.place == f"f.json:1:{64 * len(opening) + 1}"


def test_nesting_up_to_the_limit_and_brackets_in_strings() -> None:
    assert read_json("[" * 64 + "]" * 64, "f") is not None
    many = ["[{" * 100, '"[[[' * 100, "\\"]
    assert read_json(json.dumps(many), "f") == many


def test_a_hostile_string_takes_no_time() -> None:
    # Unterminated, with a million quotes to restart at, and brackets enough to be scanned.
    assert refused('"' + '\\"' * 1_000_000 + "[" * 65).place == "f.json:1:1"


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(
        st.characters(exclude_categories=["Cs"])), inner, max_size=4),
    max_leaves=20,
)  # fmt: skip


@settings(deadline=None)
@given(JSON)
def test_what_is_written_is_read(value: object) -> None:
    text = json_text(value)
    assert text.endswith("\n")
    assert read_json(text.encode(), "f") == value


def test_json_is_written_in_order_in_utf8_with_plain_newlines(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    write_json(path, {"b": 1, "a": "é"})
    assert path.read_bytes() == b'{\n  "b": 1,\n  "a": "\xc3\xa9"\n}\n'
    with pytest.raises(ValueError, match="JSON"):
        json_text({"a": float("nan")})


def test_files_by_path(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    path.write_bytes(b'{"a": [1]}')
    assert load_json(path) == {"a": [1]}
    with pytest.raises(DocumentError, match="other: the file is too large"):
        load_json(path, "other", limit=9)
    with pytest.raises(DocumentError, match="can't be read"):
        load_json(tmp_path / "none.json")
    with pytest.raises(DocumentError, match=r"not a file|can't be read"):
        load_json(tmp_path)


DOCUMENT = Document(
    "f.json",
    {
        "n": 1.5,
        "i": 7,
        "whole": 4096.0,
        "t": "text",
        "b": True,
        "null": None,
        "l": [1, "2", None],
        "o": {"a/b": {"~": 3}},
        "nan": float("nan"),
        "huge": 2**60,
    },
)


def test_values_by_kind() -> None:
    assert DOCUMENT.require("n").number() == 1.5
    number = DOCUMENT.require("i").number()
    assert (number, type(number)) == (7.0, float)
    assert DOCUMENT.require("i").integer() == 7
    whole = DOCUMENT.require("whole").integer()
    assert (whole, type(whole)) == (4096, int)
    assert DOCUMENT.require("t").text() == "text"
    assert DOCUMENT.require("b").boolean() is True
    assert DOCUMENT.require("null").value is None
    assert DOCUMENT.get("null") is None
    assert DOCUMENT.get("none") is None
    assert DOCUMENT.has("null")
    assert not DOCUMENT.has("none")
    assert [item.pointer for item in DOCUMENT.require("l").items()] == ["/l/0", "/l/1", "/l/2"]
    assert list(DOCUMENT.fields())[:3] == ["n", "i", "whole"]
    assert Document("f", [1, 2.5]).numbers() == (1.0, 2.5)
    assert Document("f", [1, 2.0]).integers() == (1, 2)
    assert Document("f", ["a"]).texts() == ("a",)
    assert (DOCUMENT.is_object, DOCUMENT.is_list) == (True, False)


def test_places_are_json_pointers() -> None:
    inner = DOCUMENT.require("o").require("a/b").require("~")
    assert inner.place == "f.json#/o/a~1b/~0"
    assert DOCUMENT.require("o").fields()["a/b"].pointer == "/o/a~1b"


@pytest.mark.parametrize(
    ("key", "getter", "found"),
    [
        ("b", "number", "true"),
        ("b", "integer", "true"),
        ("t", "number", '"text"'),
        ("nan", "number", "nan"),
        ("null", "number", "null"),
        ("n", "integer", "1.5"),
        ("huge", "integer", str(2**60)),
        ("t", "integer", '"text"'),
        ("i", "text", "7"),
        ("i", "boolean", "7"),
        ("t", "boolean", '"text"'),
        ("o", "items", "an object of 1"),
        ("l", "fields", "a list of 3"),
        ("t", "items", '"text"'),
        ("null", "fields", "null"),
    ],
)
def test_a_value_of_another_kind(key: str, getter: str, found: str) -> None:
    with pytest.raises(DocumentError) as caught:
        getattr(DOCUMENT.require(key), getter)()
    error = caught.value
    assert (error.place, error.found) == (f"f.json#/{key}", found)
    assert error.allowed is not None


def test_entries_of_a_list_name_their_place() -> None:
    with pytest.raises(DocumentError, match="#/l/1: not a number"):
        DOCUMENT.require("l").numbers()
    with pytest.raises(DocumentError, match="#/l/0: not a string"):
        DOCUMENT.require("l").texts()


def test_bounds_and_choices() -> None:
    with pytest.raises(DocumentError, match="from 8 to 9"):
        DOCUMENT.require("i").integer(8, 9)
    with pytest.raises(DocumentError, match="allowed: a, b"):
        DOCUMENT.require("t").text(("a", "b"))
    assert DOCUMENT.require("t").text(("text",)) == "text"


def test_a_missing_key_names_its_place() -> None:
    with pytest.raises(DocumentError) as caught:
        DOCUMENT.require("o").require("x/y", allowed="a thing")
    assert caught.value.place == "f.json#/o/x~1y"
    assert caught.value.found is None
    assert caught.value.allowed == "a thing"
    for getter in ("get", "require", "has"):
        with pytest.raises(DocumentError, match="not an object"):
            getattr(DOCUMENT.require("l"), getter)("a")


def test_yaml(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text("a: &x {b: 1.0}\nc: *x\nd: [1, '2', null]\n", encoding="utf-8")
    assert load_yaml(path) == {"a": {"b": 1.0}, "c": {"b": 1.0}, "d": [1, "2", None]}
    path.write_text("", encoding="utf-8")
    assert load_yaml(path) is None


@pytest.mark.parametrize(
    ("text", "place", "word"),
    [
        ("a: 1\nb:\n  c: 1\n  d: 2\n  c: 3\n", "f.yaml:5:3", "stands twice"),
        ("a: [1\nb: 2\n", "f.yaml:2:2", "malformed YAML"),
        ("a: !!python/object/apply:os.getcwd []\n", "f.yaml:1:4", "malformed YAML"),
        ("? [a]\n: 1\n", "f.yaml:1:3", "malformed YAML"),
    ],
)
def test_yaml_that_is_refused(tmp_path: Path, text: str, place: str, word: str) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(DocumentError, match=word) as caught:
        load_yaml(path, "f.yaml")
    assert caught.value.place == place


@pytest.mark.skipif(
    yaml.__version__ in {"6.0", "6.0.1", "6.0.2", "6.0.3"}, reason="PyYAML before 6.0.4 reads it"
)
def test_yaml_that_is_deep(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text("[" * 5000 + "]" * 5000, encoding="utf-8")
    with pytest.raises(DocumentError, match=r"nested too deep|malformed"):
        load_yaml(path)


def test_schemas_are_found_and_hold() -> None:
    assert schema_path("families.yaml").is_file()
    schema = load_schema("config.schema.json")
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    validate({"model_type": "llama", "rope_scaling": None}, "config.schema.json", "f.json")


@pytest.mark.parametrize(
    ("value", "pointer"),
    [
        ([], ""),
        ({"model_type": 1}, "/model_type"),
        ({"model_type": "x", "text_config": {"head_dim": "a/b"}}, "/text_config"),
        ({"model_type": "x", "layer_types": ["a", 1]}, "/layer_types/1"),
    ],
)
def test_a_value_that_breaks_its_schema(value: object, pointer: str) -> None:
    with pytest.raises(DocumentError, match=r"config\.schema\.json") as caught:
        validate(value, "config.schema.json", "f.json")
    assert str(caught.value.place).startswith(f"f.json#{pointer}")


def test_a_schema_that_is_missing() -> None:
    with pytest.raises(DependencyError, match="Install packimport again"):
        schema_path("none.schema.json")


def test_every_schema_is_a_schema() -> None:
    import jsonschema

    names = [p.name for p in schema_path("families.yaml").parent.glob("*.schema.json")]
    assert len(names) >= 4
    for name in names:
        jsonschema.Draft202012Validator.check_schema(load_schema(name))


def test_a_wheel_carries_the_schemas_within_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "packimport"
    (package / "_schemas").mkdir(parents=True)
    (package / "_schemas" / "a.json").write_text("{}", encoding="utf-8")
    (tmp_path / "schemas").mkdir()
    (tmp_path / "schemas" / "b.json").write_text("{}", encoding="utf-8")
    monkeypatch.setattr(schemas, "_PACKAGE", package)
    assert schema_path("a.json") == package / "_schemas" / "a.json"
    assert schema_path("b.json") == tmp_path / "schemas" / "b.json"


def test_reading_json_imports_neither_yaml_nor_jsonschema() -> None:
    script = (
        "import sys; from packimport.pack.documents import read_json; read_json('{}', 'f');"
        "sys.exit(bool({'yaml', 'jsonschema', 'numpy', 'onnx'} & sys.modules.keys()))"
    )
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", script], cwd=root, check=False).returncode == 0
