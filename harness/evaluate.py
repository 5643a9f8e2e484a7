"""`python -m harness.evaluate`: measures mean@k and best@k of a policy on held-out tasks, at a fixed K."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console

from harness.settings.command_line import errors_in_one_line, flag_of, parse
from harness.settings.evaluate import EvaluateConfig, official
from harness.settings.section import changed

__all__ = ["main"]

_PROG = "python -m harness.evaluate"


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    words, console = sys.argv[1:] if argv is None else argv, Console()
    with errors_in_one_line(console):
        default = EvaluateConfig()
        if "--official" in words:
            env = flag_of(words, "env", default.environment.env)
            default = changed(default, env=env, **official(env))
        config = parse(default, words, prog=_PROG)
        from harness.evaluation.run import run  # torch takes seconds to import, and `--help` needs none of it

        run(config, console)


if __name__ == "__main__":
    main()
