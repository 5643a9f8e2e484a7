"""The command: writes an evaluation's episodes in a benchmark's own format, for the benchmark's own command."""

from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import Annotated, Literal

import tyro
from rich.console import Console
from rich.progress import Progress


@dataclass(frozen=True)
class Export:
    """Writes the episodes of an evaluation, the first of each task, as a benchmark's own files."""

    what: Annotated[Literal["bfcl", "appworld", "tau2"], tyro.conf.Positional, tyro.conf.arg(metavar="BENCHMARK")]
    """bfcl (for bfcl evaluate), appworld (for appworld evaluate), or tau2 (for tau2 evaluate-trajs)."""
    folder: Annotated[Path, tyro.conf.Positional]
    """The folder of an evaluation (harness.evaluate --out)."""
    out: Path
    """The folder for the files."""
    name: str = ""
    """bfcl: a name in bfcl-eval's list of models, whose handler reads the messages. By default one for the action
    format.
    appworld: the name of the experiment, followed by the split.
    tau2: the agent's name."""


def export(wanted: Export, console: Console) -> None:
    """Writes the files, and prints where they are and the command that scores them."""

    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True, markup=False)

    if wanted.what == "bfcl":
        from harness.export.bfcl_results import write_bfcl_results

        results = write_bfcl_results(wanted.folder, wanted.out, name=wanted.name)
        missing, where = results.missing, results.folder.resolve()
        scores = quote(str(where / "score"))
        say(f"{results.folder}: {results.entries} entries" + (f", {missing} missing" if missing else ""))
        say(
            f"{'OPENAI_API_KEY=unused ' if results.needs_key else ''}bfcl evaluate --model {quote(results.name)} "
            f"--test-category multi_turn --result-dir {quote(str(where))} --score-dir {scores}"
            f"{' --partial-eval' if missing else ''}"
        )
        return
    if wanted.what == "tau2":
        from harness.export.tau2_results import write_tau2_results

        file = wanted.out / f"{wanted.name or 'elastic-horizon'}.json"
        say(f"{file}: {write_tau2_results(wanted.folder, file)} episodes")
        say(f"tau2 evaluate-trajs {quote(str(file.resolve()))}")
        return

    from harness.export.appworld_outputs import write_appworld_outputs

    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("tasks", total=None)
        outputs = write_appworld_outputs(
            wanted.folder,
            wanted.out,
            name=wanted.name,
            on_task=lambda done, of: progress.update(bar, completed=done, total=of),
        )
    say(f"{wanted.out}: {outputs.tasks} tasks" + (f", {outputs.missing} missing" if outputs.missing else ""))
    for tasks, why in (
        (outputs.differing, "got another verdict when their code ran again"),
        (outputs.solved_but_stopped, "were solved but not completed, which AppWorld's evaluation counts as solved"),
    ):
        if tasks:
            say(f"{len(tasks)} tasks {why}: {', '.join(tasks)}")
    say(f"appworld evaluate {quote(outputs.experiment)} {outputs.split} --root {quote(str(wanted.out.resolve()))}")
