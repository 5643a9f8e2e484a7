"""`python -m harness.export`: writes kept episodes as files for other tools.

``bfcl`` and ``appworld`` write files that the benchmarks' own evaluations score. ``messages`` writes conversations, for
supervised training elsewhere, and ``tokens`` the token ids with the mask of what the model wrote.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console
from rich.progress import Progress

from eh_gym.errors import ConfigError
from harness.settings.command_line import errors_in_one_line, parse

__all__ = ["Export", "export", "main"]


@dataclass(frozen=True)
class Export:
    """Writes the episodes of an evaluation, or of a training run, as files for other tools."""

    what: Annotated[Literal["bfcl", "appworld", "messages", "tokens"], tyro.conf.Positional]
    """bfcl (for bfcl evaluate), appworld (for appworld evaluate), messages (conversations), or tokens (token ids and masks)."""
    folder: Annotated[Path, tyro.conf.Positional]
    """The folder of an evaluation (harness.evaluate --out), or of a benchmark, whose greedy episodes bfcl and appworld
    take. For messages and tokens, also that of a run."""
    out: Path
    """The folder for the files of bfcl and appworld. For messages and tokens, the JSON Lines file."""
    name: str = ""
    """bfcl: a name in bfcl-eval's list of models, whose handler reads the messages. By default one for the action format.
    appworld: the name of the experiment, followed by the split."""
    rollout: int = 0
    """bfcl, appworld: which episode of each task, counted from 0."""
    successes_only: bool = False
    """messages, tokens: leave out the episodes that failed."""


def export(wanted: Export, console: Console) -> None:
    """Writes the files, and prints where they are and how to use them.

    Raises:
        ConfigError: The folder holds no such episodes, the files can't be written, or a flag has no effect on them.
        StateError: A file in the folder is damaged.
    """
    from harness.evaluation.folder import evaluations_in

    for name in ("successes_only",) if wanted.what in ("bfcl", "appworld") else ("name", "rollout"):
        if getattr(wanted, name) != getattr(Export, name):
            raise ConfigError(f"--{name.replace('_', '-')} is not for {wanted.what}; leave it out")

    folders = evaluations_in(wanted.folder)  # several in the folder of a benchmark
    if folders and wanted.folder not in folders:
        if wanted.what in ("bfcl", "appworld"):
            folders = [folder for folder in folders if folder.name.endswith("-greedy")] or folders
        elif len(folders) > 1:
            raise ConfigError(
                f"{wanted.folder} holds {len(folders)} evaluations, and {wanted.what} writes one file; give one of "
                + ", ".join(map(str, folders))
            )
        for folder in folders:
            export(replace(wanted, folder=folder), console)
        return

    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True, markup=False)

    if wanted.what == "bfcl":
        from harness.evaluation.export.bfcl import write_bfcl_results

        results = write_bfcl_results(wanted.folder, wanted.out, name=wanted.name, rollout=wanted.rollout)
        say(
            f"{results.folder}: {results.entries} entries" + (f", {results.missing} missing" if results.missing else "")
        )
        partial = " --partial-eval" if results.missing else ""
        where = results.folder.resolve()
        key = "OPENAI_API_KEY=unused " if results.needs_key else ""
        say(
            f"{key}bfcl evaluate --model {results.name} --test-category multi_turn --result-dir {where} "
            f"--score-dir {where / 'score'}{partial}"
        )
    elif wanted.what == "appworld":
        from harness.evaluation.export.appworld import write_appworld_outputs

        with Progress(console=console, transient=True) as progress:
            bar = progress.add_task("tasks", total=None)
            outputs = write_appworld_outputs(
                wanted.folder,
                wanted.out,
                name=wanted.name,
                rollout=wanted.rollout,
                on_task=lambda done, of: progress.update(bar, completed=done, total=of),
            )
        say(f"{wanted.out}: {outputs.tasks} tasks" + (f", {outputs.missing} missing" if outputs.missing else ""))
        for tasks, why in (
            (outputs.differing, "got another verdict when their code ran again"),
            (outputs.solved_but_stopped, "were solved but not completed, which AppWorld's evaluation counts as solved"),
        ):
            if tasks:
                say(f"{len(tasks)} tasks {why}: {', '.join(tasks)}")
        say(f"appworld evaluate {outputs.experiment} {outputs.split} --root {wanted.out.resolve()}")

    else:
        from harness.evaluation.export.lines import conversation, tokens_of, write_lines

        form = conversation if wanted.what == "messages" else tokens_of
        count = write_lines(wanted.folder, wanted.out, form, successes_only=wanted.successes_only)
        say(f"{wanted.out}: {count} episodes")


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    console = Console()
    with errors_in_one_line(console):
        default = Export(what=tyro.MISSING, folder=tyro.MISSING, out=tyro.MISSING)
        export(parse(default, argv, prog="python -m harness.export"), console)


if __name__ == "__main__":
    main()
