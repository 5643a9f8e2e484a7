"""`python -m harness.export`."""

from collections.abc import Sequence

import tyro
from rich.console import Console

from harness.export.export import Export, export
from harness.settings.command_line import errors_in_one_line, parse


def main(argv: Sequence[str] | None = None) -> None:
    console = Console()
    with errors_in_one_line(console):
        default = Export(what=tyro.MISSING, folder=tyro.MISSING, out=tyro.MISSING)
        export(parse(default, argv, prog="python -m harness.export"), console)


if __name__ == "__main__":
    main()
