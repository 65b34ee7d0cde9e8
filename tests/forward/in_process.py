"""In process: runs `forward-serve` in the process of a test."""

from __future__ import annotations

import pytest

from forward import cli


class Serve:
    """Runs the command: exit code, standard output, standard error."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *args: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            cli.main([str(arg) for arg in args])
        out, err = self._capsys.readouterr()
        assert isinstance(caught.value.code, int)
        return caught.value.code, out, err
