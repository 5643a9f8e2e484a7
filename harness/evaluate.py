"""`python -m harness.evaluate`: measures mean@k and best@k of a policy on held-out tasks, at a fixed K."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from rich.console import Console

from eh_gym.errors import ConfigError
from harness.settings.command_line import errors_in_one_line, flag_of, parse
from harness.settings.evaluate import EvaluateConfig, official
from harness.settings.section import changed

__all__ = ["defaults", "main"]

_PROG = "python -m harness.evaluate"


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    words, console = sys.argv[1:] if argv is None else argv, Console()
    with errors_in_one_line(console):
        config = parse(defaults(words), words, prog=_PROG)
        from harness.evaluation.run import run  # torch takes seconds to import, and `--help` needs none of it

        run(config, console)


def defaults(words: Sequence[str]) -> EvaluateConfig:
    """Returns the defaults of a command line: with ``--official`` those of the benchmark that it names."""
    if words and not words[0].startswith("-"):
        raise ConfigError(f"expected a flag, got {words[0]}; did you mean --policy {words[0]}?")
    default = EvaluateConfig()
    if "--official" not in words:
        return default
    env = flag_of(words, "env", default.environment.env)
    return changed(default, env=env, **official(env))


if __name__ == "__main__":
    main()
