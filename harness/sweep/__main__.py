"""`python -m harness.sweep`."""

import sys
from collections.abc import Sequence

from rich.console import Console

from envs.make import make_environment
from envs.mixed import spec_of
from harness.settings.command_line import errors_in_one_line
from harness.sweep.sweep import parse, sweep


def main(argv: Sequence[str] | None = None) -> None:
    console = Console()
    with errors_in_one_line(console):
        try:
            settings = parse(sys.argv[1:] if argv is None else argv)
            played = settings.train.environment
            if played.env_workers == "local" and not played.agent:  # otherwise every run would report a missing backend
                make_environment(spec_of(played.env), played.arguments()).close()
            failed = sweep(settings, console)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("the same command continues from here") from None
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
