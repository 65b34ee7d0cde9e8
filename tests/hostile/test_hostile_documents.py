"""JSON that is malformed, ambiguous or made to exhaust: every config of a pack, every case."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from attempts import command, refused, sound_pack

import packimport

CONFIGS = ("genai_config.json", "config.json", "packimport.json")


def insert(text: str) -> Callable[[bytes], bytes]:
    """The document with `text` as its first member."""
    return lambda document: document.replace(b"{", b"{" + text.encode() + b",", 1)


CASES: dict[str, Callable[[bytes], bytes]] = {
    "empty file": lambda _: b"",
    "cut short": lambda document: document[:-5],
    "zeros": lambda document: bytes(len(document)),
    "not an object": lambda _: b"[1]",
    "a pickle": lambda _: b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94.",
    "duplicate keys": insert('"model_type": "a", "model_type": "b"'),
    "duplicate keys, escaped": insert('"ab": 1, "\\u0061b": 2'),
    "NaN": insert('"x": NaN'),
    "Infinity": insert('"x": -Infinity'),
    "1e999": insert('"x": 1e999'),
    "an integer of a million digits": insert('"x": ' + "9" * 1_000_000),
    "deep lists": insert('"x": ' + "[" * 100_000 + "]" * 100_000),
    "deep objects": insert('"x": ' + '{"a":' * 100_000 + "1" + "}" * 100_000),
    "deep and never closed": lambda _: b"[" * 1_000_000,
    "a byte order mark": lambda document: b"\xef\xbb\xbf" + document,
    "UTF-16": lambda document: document.decode().encode("utf-16"),
    "UTF-16 without a mark": lambda document: document.decode().encode("utf-16-le"),
    "UTF-32": lambda document: document.decode().encode("utf-32"),
    "Latin-1": lambda d: d.replace(b"{", b'{"x": "\xfc",', 1),
    "an overlong encoding": lambda d: d.replace(b"{", b'{"x": "\xc0\xaf",', 1),
    "half of a surrogate pair": insert('"x": "\\ud800"'),
    "control characters in a string": insert('"x": "\x1b[2J"'),
    "comments": lambda document: b"// hello\n" + document,
    "a trailing comma": lambda document: document.rstrip()[:-1] + b",}",
    "two documents": lambda document: document + document,
    "a flood of lists": insert('"x": [' + "[]," * 3_000_000 + "1]"),
    "a flood of objects": insert('"x": [' + '{"":{}},' * 1_500_000 + "1]"),
    "too large": lambda document: document + b" " * 17_000_000,
}


@pytest.mark.parametrize("file", CONFIGS)
@pytest.mark.parametrize("case", CASES)
def test_every_config_is_held_to_strict_json(case: str, file: str, tmp_path: Path) -> None:
    pack = sound_pack(tmp_path / "in" / "p")
    if file == "packimport.json":
        # A manifest is read before a patch replaces it.
        packimport.patch(pack, tmp_path / "in" / "q")
        pack = tmp_path / "in" / "q"
    path = pack / file
    path.write_bytes(CASES[case](path.read_bytes()))
    assert refused(pack)["place"].startswith(file)


@pytest.mark.parametrize("case", CASES)
def test_a_config_that_the_user_names(case: str, tmp_path: Path) -> None:
    pack = sound_pack(tmp_path / "in" / "p")
    config = tmp_path / "in" / "source.json"
    config.write_bytes(CASES[case]((pack / "config.json").read_bytes()))
    assert refused(pack, "--config", config, reads=(config,))["place"].startswith(str(config))


NUMBERS = ("-1", "0", "0.5", "1e300", str(2**53 + 1), str(10**20), '"64"', "true", "{}", "[]")


@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("key", ["head_size", "num_hidden_layers", "num_key_value_heads"])
def test_sizes_that_no_model_has(key: str, number: str, tmp_path: Path) -> None:
    pack = sound_pack(tmp_path / "in" / "p")
    genai = json.loads((pack / "genai_config.json").read_text(encoding="utf-8"))
    genai["model"]["decoder"][key] = json.loads(number)
    (pack / "genai_config.json").write_text(json.dumps(genai), encoding="utf-8")
    assert command(pack).code in (1, 3)
    assert command("patch", pack, "-o", tmp_path / "out").code == 3
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "filename",
    [
        "../p/model.onnx",
        "/etc/passwd",
        "C:\\model.onnx",
        "C:model.onnx",
        "\\\\server\\share\\model.onnx",
        "..\\model.onnx",
        "model.onnx:stream",
        "NUL",
        "con.onnx",
        "COM\u00b9.onnx",
        "a\u0000b",
        "\x1b]0;x\x07.onnx",
        "a//b.onnx",
        "./model.onnx",
        "",
        ".",
        "absent.onnx",
        "MODEL.ONNX",
        "model.onnx ",
        "n" * 300,
        "d/" * 5000 + "x",
    ],
)
def test_a_graph_is_a_plain_path_in_the_pack(filename: str, tmp_path: Path) -> None:
    pack = sound_pack(tmp_path / "in" / "p")
    genai = json.loads((pack / "genai_config.json").read_text(encoding="utf-8"))
    genai["model"]["decoder"]["filename"] = filename
    (pack / "genai_config.json").write_text(json.dumps(genai), encoding="utf-8")
    refused(pack)
