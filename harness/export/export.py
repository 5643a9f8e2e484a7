"""The command of the export."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro
from rich.console import Console


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
    if wanted.what == "bfcl":
        from harness.export.bfcl_results import write_bfcl_results

        said = write_bfcl_results(wanted.folder, wanted.out, name=wanted.name)
    elif wanted.what == "tau2":
        from harness.export.tau2_results import write_tau2_results

        said = write_tau2_results(wanted.folder, wanted.out, name=wanted.name)
    else:
        from harness.export.appworld_outputs import write_appworld_outputs

        said = write_appworld_outputs(wanted.folder, wanted.out, console, name=wanted.name)
    for line in said:
        console.print(line, highlight=False, soft_wrap=True, markup=False)
