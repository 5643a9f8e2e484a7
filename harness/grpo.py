"""`python -m harness.grpo`: trains an agent with GRPO, under the horizon that `--wrapper` names."""

import sys
from collections.abc import Sequence

from rich.console import Console

from harness.settings.command_line import errors_in_one_line
from harness.settings.extras import require_extras
from harness.training.command import read_command


def main(argv: Sequence[str] | None = None) -> None:
    console = Console()
    with errors_in_one_line(console):
        request = read_command(sys.argv[1:] if argv is None else argv)
        require_extras(request.config)
        from harness.training.carry_out import carry_out  # torch takes seconds to import, and `--help` needs none of it

        carry_out(request, console)


if __name__ == "__main__":
    main()
