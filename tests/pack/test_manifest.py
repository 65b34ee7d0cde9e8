from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from little_packs import FILES, edit_of, make_pack

from packimport.errors import ContainerError, DocumentError
from packimport.pack.container import Container, open_container
from packimport.pack.digests import sha256_of_files
from packimport.pack.documents import validate, write_json
from packimport.pack.manifest import (
    MANIFEST,
    FileRecord,
    Manifest,
    edit_records,
    read_manifest,
)
from packimport.pack.verification import Verification, verify

# sha256 of "abc": FIPS 180-4, the example of one block.
ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
# sha256 of a million times "a": NIST's example of a long message.
MILLION_A = "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"


def full_manifest() -> Manifest:
    return Manifest(
        tool_version="1.2.3",
        container_format="folder",
        source={"path": "somewhere", "format": "hub snapshot", "revision": "0123"},
        files=(
            FileRecord(name="genai_config.json", size=3, sha256=ABC),
            FileRecord(name="model.onnx", size=1_000_000, sha256=MILLION_A),
        ),
        edits=edit_records([edit_of(b"abcdef", "model.onnx", 1, b"XY", "cos: plain to llama3")]),
        semantics={"layers": [None]},
        declaration={"file": "config.json", "origin": "--config", "config": {"rope_theta": 1e4}},
    )


def written(folder: Path, value: object) -> Container:
    files = {"genai_config.json": b"abc", "model.onnx": b"a" * 1_000_000}
    write_json(make_pack(folder, files) / MANIFEST, value)
    return open_container(folder)


def test_what_is_written_obeys_the_schema_and_is_read_back(tmp_path: Path) -> None:
    manifest = full_manifest()
    validate(manifest.to_dict(), "packimport.schema.json", MANIFEST)
    container = written(tmp_path, manifest.to_dict())
    assert read_manifest(container) == manifest
    empty = replace(manifest, semantics=None, declaration=None, edits=())
    validate(empty.to_dict(), "packimport.schema.json", MANIFEST)


def test_edits_are_recorded_without_their_bytes() -> None:
    (record,) = full_manifest().edits
    assert (record.file, record.offset, record.length) == ("model.onnx", 1, 2)
    # `printf bc | sha256sum`, `printf XY | sha256sum` (coreutils 9.1)
    assert record.old_sha256 == "1e0bbd6c686ba050b8eb03ffeedc64fdc9d80947fce821abbe5d6dc8d252c5ac"
    assert record.new_sha256 == "c07a3de039fbc0914689549f041eae295d621de7f7f647fd863f6d2f8db2080e"


def test_no_manifest(tmp_path: Path) -> None:
    assert read_manifest(open_container(make_pack(tmp_path))) is None


@pytest.mark.parametrize(
    ("pointer", "value"),
    [
        (["files", 0, "sha256"], "ABC"),
        (["files", 0, "size"], -1),
        (["files", 0], None),
        (["files"], {}),
        (["edits", 0, "length"], 0),
        (["edits", 0, "new_sha256"], "A" * 64),
        (["edits", 0, "offset"], "1"),
        (["tool", "name"], "another"),
        (["schema_version"], 0),
        (["schema_version"], "1"),
        (["declaration"], "llama3"),
        (["semantics"], []),
        (["source"], None),
    ],
)
def test_a_manifest_that_is_malformed_is_refused_by_pointer(
    tmp_path: Path, pointer: list[str | int], value: object
) -> None:
    document = json.loads(json.dumps(full_manifest().to_dict()))
    place = document
    for step in pointer[:-1]:
        place = place[step]
    place[pointer[-1]] = value
    with pytest.raises(DocumentError):
        validate(document, "packimport.schema.json", MANIFEST)
    with pytest.raises(DocumentError) as caught:
        read_manifest(written(tmp_path, document))
    assert caught.value.place == "/".join([f"{MANIFEST}#", *map(str, pointer)])


@pytest.mark.parametrize("value", [[], None, {}, {"schema_version": 1}])
def test_a_manifest_that_is_none(tmp_path: Path, value: object) -> None:
    with pytest.raises(DocumentError, match=MANIFEST):
        read_manifest(written(tmp_path, value))


def test_a_later_manifest_asks_for_a_later_packimport(tmp_path: Path) -> None:
    with pytest.raises(DocumentError, match="Update packimport"):
        read_manifest(written(tmp_path, {"schema_version": 3, "anything": "else"}))


def test_a_file_named_twice(tmp_path: Path) -> None:
    manifest = full_manifest()
    twice = replace(manifest, files=(*manifest.files, manifest.files[0]))
    with pytest.raises(DocumentError, match="twice"):
        read_manifest(written(tmp_path, twice.to_dict()))


def test_verify_says_what_differs(tmp_path: Path) -> None:
    manifest = full_manifest()
    assert verify(written(tmp_path, manifest.to_dict()), manifest).ok

    (tmp_path / "model.onnx").write_bytes(b"a" * 999_999 + b"b")
    (tmp_path / "another").write_bytes(b"")
    (tmp_path / "genai_config.json").unlink()
    found = verify(open_container(tmp_path), manifest)
    assert found == Verification(
        extra=("another",), missing=("genai_config.json",), changed=("model.onnx",)
    )
    assert not found.ok


def test_verify_reads_no_file_of_another_size(tmp_path: Path) -> None:
    manifest = full_manifest()
    container = written(tmp_path, manifest.to_dict())
    (tmp_path / "model.onnx").write_bytes(b"short")
    seen: list[tuple[int, int]] = []
    found = verify(
        open_container(tmp_path), manifest, lambda done, total: seen.append((done, total))
    )
    assert found.changed == ("model.onnx",)
    assert seen[-1] == (3, 3)  # the three bytes of genai_config.json
    with pytest.raises(ContainerError, match="changed since"):
        verify(container, manifest)


def test_digests_of_every_file(tmp_path: Path) -> None:
    files = {**FILES, "abc": b"abc", "long": b"a" * 1_000_000, "longer": bytes(3 * 2**20 + 17)}
    container = open_container(make_pack(tmp_path, files))
    seen: list[tuple[int, int]] = []
    digests = sha256_of_files(
        container, container.files, lambda done, total: seen.append((done, total))
    )
    assert set(digests) == set(files)
    assert (digests["abc"], digests["long"]) == (ABC, MILLION_A)
    # `head -c 3145745 /dev/zero | sha256sum` (coreutils 9.1)
    assert digests["longer"] == "e646af78cafd6e69373e6fc9e9c1f68eff3e9ecc0c21bbfeddb647e8534d1114"
    total = sum(map(len, files.values()))
    assert seen[-1] == (total, total)
