"""The command `forward-serve`. Heavy modules are imported by the command that needs them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

import click

from forward.cli_compare import compare_command, export_command, import_command
from forward.cli_run import reference_command, run_command
from packimport.shell import DefaultGroup, run
from packimport.version import __version__


@click.group(
    cls=DefaultGroup, default="run", context_settings={"help_option_names": ["-h", "--help"]}
)
@click.version_option(__version__, prog_name="forward-serve")
def group() -> None:
    """Run an ONNX LLM pack through onnxruntime, dump its logits, compare dumps.

    CONTAINER is the folder of a pack. Texts become tokens by its tokenizer.json.
    """


for _command in (run_command, reference_command, compare_command, import_command, export_command):
    group.add_command(_command)


def main(args: Sequence[str] | None = None) -> NoReturn:
    """The entry point of `forward-serve`; args: None for those of the process."""
    run(group, "forward-serve", args)
