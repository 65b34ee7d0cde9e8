"""The schemas of this project: where they lie, and whether a value obeys one."""

from __future__ import annotations

from pathlib import Path

from packimport.errors import DependencyError, DocumentError
from packimport.pack.strict_json import escape, read_json

_PACKAGE = Path(__file__).resolve().parents[1]


def schema_path(name: str) -> Path:
    """The path of a file of `schemas/`, such as "report.schema.json" or "families.yaml".

    A wheel carries them within the package; a checkout and an editable install
    have them beside it.

    Raises DependencyError where the installation lacks the file.
    """
    for folder in (_PACKAGE / "_schemas", _PACKAGE.parent / "schemas"):
        path = folder / name
        if path.is_file():
            return path
    raise DependencyError(
        "this installation of packimport lacks a file of its own",
        place=name,
        fix="Install packimport again.",
    )


def load_schema(name: str) -> dict[str, object]:
    """The JSON Schema of that name, such as "report.schema.json"."""
    value = read_json(schema_path(name).read_bytes(), name)
    assert isinstance(value, dict)
    return value


def validate(value: object, schema_name: str, file: str) -> None:
    """Refuse a value that breaks the schema of that name.

    Takes 0.1 s for its import: the readers of configs check by their typed
    getters what they read, and leave this to the files that packimport itself
    writes and to tests.

    Raises DocumentError with the JSON pointer of the most telling fault.
    """
    import jsonschema

    validator = jsonschema.Draft202012Validator(load_schema(schema_name))
    fault = jsonschema.exceptions.best_match(validator.iter_errors(value))
    if fault is None:
        return
    pointer = "".join("/" + escape(str(step)) for step in fault.absolute_path)
    raise DocumentError(
        f"breaks schemas/{schema_name}: {fault.message}"[:300], place=f"{file}#{pointer}"
    )
