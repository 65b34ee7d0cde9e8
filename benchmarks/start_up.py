"""Start-up of both commands, beside the import of click. One run, ratios.

python benchmarks/start_up.py [--rounds 15]
"""

from __future__ import annotations

import argparse

from measuring import load, python, ratio, rounds_of, run, show

HELP = "import sys; from {module} import main; main(['--help'])"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    print(load())
    seen = rounds_of(
        {
            "import click": lambda: run(python("import click")),
            "packimport --help": lambda: run(python(HELP.format(module="packimport.cli"))),
            "forward-serve --help": lambda: run(python(HELP.format(module="forward.cli"))),
        },
        options.rounds,
    )
    show(seen)
    click = seen["import click"].seconds
    for name in ("packimport --help", "forward-serve --help"):
        ratio(f"{name} / import click", seen[name].seconds / click, "1.5")
    print(load())


if __name__ == "__main__":
    main()
