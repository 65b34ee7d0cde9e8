"""ONNX files that lie about where their values are, or are no ONNX files at all."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from attempts import command, refused, sound_pack, state_of
from builders import plain, tiny_pack
from onnx import TensorProto, helper
from processes import PEAK

posix = pytest.mark.skipif(os.name != "posix", reason="POSIX only")


def varint(value: int) -> bytes:
    out = b""
    while value > 127:
        out, value = out + bytes([value & 127 | 128]), value >> 7
    return out + bytes([value])


def message(number: int, content: bytes) -> bytes:
    """A field `number` that holds `content`."""
    return varint(number << 3 | 2) + varint(len(content)) + content


def spoilt(folder: Path, change: Callable[[onnx.ModelProto], None], **settings: object) -> Path:
    pack = sound_pack(folder, **settings)
    model = onnx.load(pack / "model.onnx", load_external_data=False)
    change(model)
    (pack / "model.onnx").write_bytes(model.SerializeToString())
    return pack


def tensor_of(model: onnx.ModelProto, name: str) -> onnx.TensorProto:
    (tensor,) = [t for t in model.graph.initializer if t.name == name]
    return tensor


def external(name: str, **entries: str | None) -> Callable[[onnx.ModelProto], None]:
    """Sets keys of a tensor's external data; None removes one."""

    def change(model: onnx.ModelProto) -> None:
        tensor = tensor_of(model, name)
        known = {entry.key: entry.value for entry in tensor.external_data} | entries
        del tensor.external_data[:]
        for key, value in known.items():
            if value is not None:
                tensor.external_data.add(key=key, value=value)

    return change


LOCATIONS = {
    "parent": "../secret",
    "parent in the middle": "a/../../secret",
    "hidden parent": "./././../secret",
    "absolute": "{secret}",
    "home": "~/secret",
    "drive": "C:\\secret",
    "drive, relative": "C:secret",
    "UNC": "\\\\server\\share\\secret",
    "device path": "\\\\.\\PhysicalDrive0",
    "long path": "\\\\?\\C:\\secret",
    "UNC with slashes": "//server/share/secret",
    "backslash parent": "..\\secret",
    "URL": "file:///{secret}",
    "alternate stream": "model.onnx.data:hidden",
    "device": "NUL",
    "device with a suffix": "aux.data",
    "superscript port": "LPT\u00b2.bin",
    "trailing dot": "model.onnx.data.",
    "trailing space": "model.onnx.data ",
    "NUL character": "model.onnx.data\0/../secret",
    "line end": "model.onnx.data\n",
    "escape": "\x1b[2J",
    "empty": "",
    "only a dot": ".",
    "a folder": "folder",
    "another case": "MODEL.onnx.data",
    "the graph itself": "model.onnx",
    "a config": "genai_config.json",
    "missing": "absent.data",
    "very long": "x" * 100_000,
    "unpaired": "a\u202eb",
}


@pytest.mark.parametrize("tensor", ["cos", "layer0.q.weight"])
@pytest.mark.parametrize("case", LOCATIONS)
def test_locations_that_are_not_followed(case: str, tensor: str, tmp_path: Path) -> None:
    secret = tmp_path / "in" / "secret"
    secret.parent.mkdir()
    secret.write_bytes(bytes(100_000))
    location = LOCATIONS[case].replace("{secret}", str(secret))
    pack = spoilt(tmp_path / "in" / "p", external(tensor, location=location))
    (pack / "folder").mkdir()
    refused(pack)


SPANS = {
    "negative offset": {"offset": "-4096"},
    "offset at the end": {"offset": "999999999"},
    "offset of 2**63": {"offset": str(2**63)},
    "offset of 2**64": {"offset": str(2**64)},
    "offset that overflows with its length": {"offset": str(2**63 - 1), "length": "4096"},
    "offset of a thousand digits": {"offset": "1" * 1000},
    "offset in hex": {"offset": "0x10"},
    "offset with a sign": {"offset": "+0"},
    "offset in other digits": {"offset": "\u0663"},
    "offset with an underscore": {"offset": "1_0"},
    "empty offset": {"offset": ""},
    "length past the end": {"length": "999999999"},
    "negative length": {"length": "-1"},
    "length of 2**64": {"length": str(2**64)},
    "NaN": {"length": "nan"},
}


@pytest.mark.parametrize("tensor", ["cos", "layer0.q.weight"])
@pytest.mark.parametrize("case", SPANS)
def test_spans_that_are_not_in_the_file(case: str, tensor: str, tmp_path: Path) -> None:
    refused(spoilt(tmp_path / "in" / "p", external(tensor, **SPANS[case])))


@pytest.mark.parametrize("other", ["sin", "layer0.q.weight", "embedding"])
@pytest.mark.parametrize("shift", [0, 4])
def test_a_wrong_table_that_shares_bytes_is_not_mended(
    other: str, shift: int, tmp_path: Path
) -> None:
    """New bytes for the table would be new bytes for a weight, or for the other table."""
    places: dict[str, str] = {}

    def overlap(model: onnx.ModelProto) -> None:
        for entry in tensor_of(model, other).external_data:
            places[entry.key] = entry.value
        external("cos", offset=str(int(places.get("offset", "0")) + shift))(model)

    pack = spoilt(tmp_path / "in" / "p", overlap, tables=plain(64, 8, 500.0))
    before = state_of(tmp_path / "in")
    done = command("patch", pack, "-o", tmp_path / "out")
    assert (done.code, (tmp_path / "out").exists()) == (3, False), done.err
    assert state_of(tmp_path / "in") == before


def test_external_data_that_is_cut_short(tmp_path: Path) -> None:
    pack = sound_pack(tmp_path / "in" / "p")
    data = pack / "model.onnx.data"
    os.truncate(data, data.stat().st_size - 1)
    assert "end" in refused(pack)["message"]


@posix
@pytest.mark.parametrize("target", ["../secret", "/etc/passwd", "/dev/zero", "/proc/self/mem"])
@pytest.mark.parametrize("name", ["model.onnx.data", "model.onnx", "genai_config.json", "other"])
def test_links_out_of_the_pack(name: str, target: str, tmp_path: Path) -> None:
    pack = sound_pack(tmp_path / "in" / "p")
    (tmp_path / "in" / "secret").write_bytes(bytes(100_000))
    (pack / name).unlink(missing_ok=True)
    (pack / name).symlink_to(target)
    assert refused(pack)["place"] == name


@posix
def test_a_written_container_shares_no_file(tmp_path: Path) -> None:
    """Hard links and links within the pack are read, and become files of their own."""
    pack = tiny_pack(tmp_path / "p", config={}, tables=plain(64, 8, 500.0))
    os.link(pack / "model.onnx.data", tmp_path / "elsewhere")
    (pack / "alias").symlink_to("model.onnx.data")
    kept = (tmp_path / "elsewhere").read_bytes()
    assert command("patch", pack, "-o", tmp_path / "out").code == 0
    for path in (tmp_path / "out").rglob("*"):
        assert path.lstat().st_nlink == 1
        assert not path.is_symlink()
    assert (tmp_path / "elsewhere").read_bytes() == kept


def graph(content: bytes) -> bytes:
    return message(7, content)


GARBAGE: dict[str, bytes] = {
    "empty": b"",
    "one zero": b"\0",
    "zeros": bytes(10_000),
    "ones": b"\xff" * 10_000,
    "text": b"#!/bin/sh\nrm -rf /\n" * 50,
    "a pickle": b"\x80\x04cos\nsystem\n(S'true'\ntR.",
    "a zip": b"PK\x03\x04" + bytes(100),
    "a numpy file": b"\x93NUMPY\x01\x00v\x00{'descr': '|O', 'fortran_order': False}",
    "no graph": b"\x08\x0a",
    "an empty graph": graph(b""),
    "a length past the end": b"\x3a\xff\xff\xff\xff\x07",
    "a length of 2**64 - 1": b"\x3a" + b"\xff" * 9 + b"\x01",
    "a number without an end": b"\x3a" + b"\xff" * 50,
    "a group": b"\x3b\x0a\x00\x3c",
    "field number 0": b"\x02\x00",
    "wire type 7": b"\x3f\x00",
    "nodes of nothing": graph(message(1, b"") * 2000),
    "a hundred thousand graphs": graph(message(11, b"")) * 100_000,
    "names that are not UTF-8": graph(message(1, message(1, b"\xff\xfe") + message(4, b"\xff"))),
    "attributes without an end": graph(message(1, message(5, message(6, b"\x0a\xff")))),
    "a flood of nodes": graph(message(1, b"") * 6_000_000),
    "a flood of attributes": graph(message(1, message(5, b"") * 6_000_000)),
    "a flood of names": graph(message(1, message(1, b"") * 6_000_000)),
    "a flood of small nodes": graph(message(1, message(5, b"") * 400) * 15_000),
}
for levels in (50, 99, 101, 5000):
    inner = message(1, message(4, b"Identity"))
    for _ in range(levels):
        inner = message(1, message(4, b"If") + message(5, message(1, b"b") + message(6, inner)))
    GARBAGE[f"graphs nested {levels} deep"] = graph(inner)


@pytest.mark.parametrize("case", GARBAGE)
def test_garbage_in_place_of_a_graph(case: str, tmp_path: Path) -> None:
    pack = sound_pack(tmp_path / "in" / "p")
    (pack / "model.onnx").write_bytes(GARBAGE[case])
    refused(pack)


@pytest.mark.parametrize("share", [0.01, 0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("inline", [True, False])
def test_a_graph_that_is_cut_short(inline: bool, share: float, tmp_path: Path) -> None:
    pack = sound_pack(tmp_path / "in" / "p", inline=inline)
    path = pack / "model.onnx"
    os.truncate(path, int(path.stat().st_size * share))
    refused(pack)


def rename(model: onnx.ModelProto, name: str) -> None:
    for node in model.graph.node:
        node.name = f"{node.name}{name}"
    for tensor in model.graph.initializer:
        for node in model.graph.node:
            node.input[:] = [i + name if i == tensor.name else i for i in node.input]
        tensor.name += name


@pytest.mark.parametrize("name", ["\x1b[2J", "\n\n  ok", "\r", "\0", "\u202e", "\x9b31m", "\u2028"])
def test_names_in_a_graph_reach_no_terminal_raw(name: str, tmp_path: Path) -> None:
    """Such a graph is odd and right: its names are escaped wherever they are printed."""
    pack = tiny_pack(
        tmp_path / "p",
        config={},
        tables=plain(64, 8, 500.0),
        change=lambda model: rename(model, name),
    )
    for args in (("check", pack), ("show", pack), ("patch", pack, "-o", tmp_path / "out")):
        done = command(*args)
        assert done.code == (1 if args[0] == "check" else 0)
        assert all(c.isprintable() or c == "\n" for c in done.out + done.err)
        if name != "\n\n  ok":
            assert name not in done.out


def dims(*sizes: int) -> Callable[[onnx.ModelProto], None]:
    def change(model: onnx.ModelProto) -> None:
        for name in ("cos", "sin"):
            tensor_of(model, name).dims[:] = sizes

    return change


@pytest.mark.parametrize(
    "sizes",
    [(-1, 8), (2**62, 8), (2**40, 2**40), (0, 0), (2**63 - 1,), (1,) * 10_000, (64, 8, 2**63 - 1)],
    ids=str,
)
def test_dims_that_no_table_has(sizes: tuple[int, ...], tmp_path: Path) -> None:
    refused(spoilt(tmp_path / "in" / "p", dims(*sizes)))


@posix
def test_a_table_beyond_all_memory(tmp_path: Path) -> None:
    """A sparse file of a terabyte, and dims that fit it."""
    rows = 2**35

    def change(model: onnx.ModelProto) -> None:
        for name in ("cos", "sin"):
            tensor_of(model, name).dims[:] = (rows, 8)
            external(name, offset="0", length=str(rows * 32))(model)

    pack = spoilt(tmp_path / "in" / "p", change)
    os.truncate(pack / "model.onnx.data", rows * 32)
    assert "larger than any table" in refused(pack)["message"]


def test_values_that_stand_twice(tmp_path: Path) -> None:
    pack = sound_pack(tmp_path / "in" / "p", inline=True)
    path = pack / "model.onnx"
    model = onnx.load(path)
    cos = tensor_of(model, "cos")
    # The same tensor again, in a second record of the same graph: protobuf joins them.
    again = message(7, message(5, message(8, b"cos") + message(9, cos.raw_data)))
    path.write_bytes(model.SerializeToString() + again)
    refused(pack)


def test_a_local_function_takes_the_place_of_an_op(tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        body = [helper.make_node("Identity", ["a"], ["b"])]
        opsets = [helper.make_opsetid("", 17)]
        model.functions.append(
            helper.make_function("com.microsoft", "GroupQueryAttention", ["a"], ["b"], body, opsets)
        )

    refused(spoilt(tmp_path / "in" / "p", change))


def test_cos_of_another_type(tmp_path: Path) -> None:
    def change(model: onnx.ModelProto) -> None:
        tensor_of(model, "cos").data_type = TensorProto.STRING

    refused(spoilt(tmp_path / "in" / "p", change))


def test_nan_and_infinity_in_a_table_are_a_finding_and_mended(tmp_path: Path) -> None:
    pack = sound_pack(tmp_path / "p", inline=True)
    model = onnx.load(pack / "model.onnx")
    cos = tensor_of(model, "cos")
    cos.raw_data = b"\x00\x00\xc0\x7f" * 8 + b"\x00\x00\x80\x7f" * 8 + cos.raw_data[64:]
    (pack / "model.onnx").write_bytes(model.SerializeToString())
    assert command(pack).code == 1
    assert command("patch", pack, "-o", tmp_path / "out").code == 0


CHECK = f"""{PEAK}
import atexit, sys
from packimport.cli import main
atexit.register(lambda: print(peak()))
main(["check", sys.argv[1], "--quiet"])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_the_densest_graph_that_is_parsed_takes_less_than_a_gigabyte(tmp_path: Path) -> None:
    pack = sound_pack(tmp_path / "p")
    (pack / "model.onnx").write_bytes(graph(message(1, b"") * 1_900_000))
    command_line = [sys.executable, "-c", CHECK, str(pack)]
    done = subprocess.run(command_line, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert int(done.stdout) < 1 << 30


def test_ops_that_lack_inputs_or_outputs(tmp_path: Path) -> None:
    """Every node in turn loses its last inputs, and its outputs."""
    pack = sound_pack(tmp_path / "p", layers=1, form="rotary_embedding")
    path = pack / "model.onnx"
    model = onnx.load(path, load_external_data=False)
    before = model.SerializeToString()
    for index, node in enumerate(model.graph.node):
        for count in range(len(node.input)):
            spoilt_model = onnx.ModelProto.FromString(before)
            del spoilt_model.graph.node[index].input[count:]
            path.write_bytes(spoilt_model.SerializeToString())
            assert command(pack).code in (0, 1, 3), (node.op_type, count)
        spoilt_model = onnx.ModelProto.FromString(before)
        del spoilt_model.graph.node[index].output[:]
        path.write_bytes(spoilt_model.SerializeToString())
        assert command(pack).code in (0, 1, 3), node.op_type
