"""`python -m harness.evaluate`: measures mean@k and best@k of a policy on held-out tasks, at a fixed K."""

import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from harness.evaluation.config_from_run import config_from_run
from harness.settings.command_line import errors_in_one_line, flag_of, parse
from harness.settings.evaluate import EvaluateConfig, official
from harness.settings.section import changed, flat

_PROG = "python -m harness.evaluate"


def main(argv: Sequence[str] | None = None) -> None:
    words, console = list(sys.argv[1:] if argv is None else argv), Console()
    with errors_in_one_line(console):
        folder = Path(words.pop(0)) if words and not words[0].startswith("-") else None
        default = defaults(words, folder)
        config = parse(default, words, prog=_PROG, short=True)
        if folder:
            usual, its, used = flat(EvaluateConfig()), flat(default), flat(config)
            told = [n for n in usual if its[n] != usual[n] or n in ("env", "horizon")]
            taken = [f"{n} {used[n]}" for n in told if used[n] == its[n]]
            console.print(f"from {folder}: {', '.join(taken)}", highlight=False, soft_wrap=True, markup=False)
        from harness.evaluation.run import run  # torch takes seconds to import, and `--help` needs none of it

        run(config, console)


def defaults(words: Sequence[str], folder: Path | None = None) -> EvaluateConfig:
    """Returns the defaults of a command line: those of a run's folder, and with ``--official`` those of the
    benchmark.
    """
    default = config_from_run(folder, flag_of(words, "env")) if folder else EvaluateConfig()
    if "--official" not in words:
        return default
    env = flag_of(words, "env", default.environment.env)
    return changed(default, env=env, **official(env))


if __name__ == "__main__":
    main()
