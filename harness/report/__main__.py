"""`python -m harness.report`."""

from collections.abc import Sequence

import tyro
from rich.console import Console

from harness.report.report import Report, report
from harness.settings.command_line import errors_in_one_line, parse


def main(argv: Sequence[str] | None = None) -> None:
    console = Console()
    with errors_in_one_line(console):
        report(parse(Report(runs=tyro.MISSING), argv, prog="python -m harness.report"), console)


if __name__ == "__main__":
    main()
