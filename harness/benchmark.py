"""`python -m harness.benchmark`: plays a benchmark's official tasks with one model, and writes scores that can be compared.

It plays every task once greedily and k times sampled, with the benchmark's own prompt where there is one. It continues after a
stop, says what it cost, prints the scores with the published ones, and writes the benchmark's own result files and a page.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from eh_gym.errors import ConfigError
from envs.making import read_env_args
from harness.evaluate import run as evaluate
from harness.settings.command_line import errors_in_one_line, parse
from harness.settings.evaluate import Evaluation, official
from harness.settings.old_flags import with_current_names
from harness.settings.presets import flag_of

if TYPE_CHECKING:
    from harness.evaluation.cost import Usage
    from harness.evaluation.result import EvalResult

__all__ = ["BenchmarkPart", "benchmark", "main", "preset", "runs_of"]

_SCRIPTS = ("expert", "empty")
_WHAT = "Plays a benchmark's official tasks once greedily and --rollouts times sampled, and writes scores that can be compared."


def runs_of(config: Evaluation) -> list[BenchmarkPart]:
    """Returns the evaluations that a benchmark plays, in their order.

    Args:
        config: What they share. `rollouts` 0 plays greedily only. Without a `split` they are about the benchmark's own ones.

    Raises:
        ConfigError: A flag is wrong, or has no effect on this policy.
    """
    if config.out is None:
        raise ConfigError("a benchmark writes files; give --out FOLDER")
    if config.rollouts and not config.temperature:
        raise ConfigError("--temperature 0 samples nothing; give --rollouts 0 to play greedily only")
    if config.policy == "openai" and not config.model:
        raise ConfigError(f"{config.base_url or 'an endpoint'} needs --model NAME, the model's name at the endpoint")
    conventions = official(config.env)
    args = {**conventions.args, **read_env_args(config.env_args)}
    shared = dataclasses.replace(config, env_args=json.dumps(args))
    kinds = [("greedy", 0.0, 1)] + ([("sampled", config.temperature, config.rollouts)] if config.rollouts else [])
    if config.policy in _SCRIPTS:
        kinds = [("greedy", config.temperature, 1)]
    if config.policy == "random":  # its actions are never greedy
        kinds = [("sampled", config.temperature, config.rollouts or 1)]
    found = []
    for split in [config.split] if config.split else conventions.splits:
        for name, temperature, rollouts in kinds:
            folder = config.out / f"{split}-{name}"
            evaluation = dataclasses.replace(
                shared, split=split, temperature=temperature, rollouts=rollouts, out=folder
            )
            evaluation.checked_environment_args()
            found.append(BenchmarkPart(split, name, evaluation))
    return found


@dataclass(frozen=True)
class BenchmarkPart:
    """One evaluation of a benchmark.

    Attributes:
        split: The split of its tasks.
        name: "greedy" or "sampled".
        evaluation: Its settings.
    """

    split: str
    name: str
    evaluation: Evaluation

    @property
    def folder(self) -> Path:
        """The folder of its episodes."""
        assert self.evaluation.out is not None
        return self.evaluation.out


def benchmark(config: Evaluation, console: Console) -> dict[str, EvalResult]:
    """Plays the benchmark and writes its files. Returns the result of each evaluation by the name of its folder.

    Raises:
        ConfigError: A flag is wrong, or the folder holds a benchmark with other settings.
        SamplerError: The model or the endpoint fails. The same command plays the rest.
    """
    from harness.evaluation.scores import benchmark_markdown

    runs = runs_of(config)
    results = {run.folder.name: evaluate(run.evaluation, console) for run in runs}
    cost = _spent(runs)
    console.print(f"spent: {cost}", highlight=False)
    scores = [(asdict(run.evaluation), asdict(results[run.folder.name])) for run in runs]
    table = benchmark_markdown(config.model or config.policy, scores, str(cost))
    _write(config.env, runs, table, console)
    return results


def _spent(runs: Sequence[BenchmarkPart]) -> Usage:
    from harness.evaluation.cost import spent
    from harness.evaluation.folder import read_evaluation
    from harness.run.episode_log import read_episodes

    return spent(line for run in runs for line in read_episodes(read_evaluation(run.folder).episodes))


def _write(env: str, runs: Sequence[BenchmarkPart], table: str, console: Console) -> None:
    """Writes the table, the benchmark's own result files of the greedy episodes, and the pages."""
    from harness.export import Export, export
    from harness.report import Report, report
    from harness.run.files import write_whole

    out = runs[0].folder.parent
    console.print(table, highlight=False, soft_wrap=True, markup=False)
    write_whole(out / "scores.md", table)
    kind = {"EH-BFCL": "bfcl", "EH-AppWorld": "appworld"}.get(env.rpartition(":")[2].rsplit("-v", 1)[0])
    if kind:
        for run in runs:
            if run.name == "greedy":
                export(Export(what=kind, folder=run.folder, out=out / kind), console)  # type: ignore[arg-type]
    report(Report(runs=tuple(run.folder for run in runs), out=out / "report.html"), console)


def preset(words: Sequence[str]) -> Evaluation:
    """Returns the defaults of a command line: the conventions of the benchmark that ``--env`` names."""
    env = flag_of(words, "env", "EH-BFCL-v0")
    return Evaluation(env=env, horizon=official(env).horizon, rollouts=8, out=Path("benchmark"), threads=1)


def with_policy(words: Sequence[str]) -> list[str]:
    """Returns a command line as flags: its first word, if it is none, is the policy, or the address of an endpoint.

    >>> with_policy(["http://localhost:8000/v1", "--model", "m"])
    ['--policy', 'openai', '--base-url', 'http://localhost:8000/v1', '--model', 'm']

    Raises:
        ConfigError: Nothing says who plays.
    """
    if words and not words[0].startswith("-"):
        endpoint = words[0].startswith(("http://", "https://"))
        return [*(["--policy", "openai", "--base-url"] if endpoint else ["--policy"]), *words]
    if not {"-h", "--help", "--help-all"} & {*words} and not flag_of(words, "policy", ""):
        raise ConfigError(
            "the first word must be a model, the address of an endpoint (http://HOST:PORT/v1), expert, random or empty"
        )
    return list(words)


def main(argv: Sequence[str] | None = None) -> None:
    """The command line. Its first word is the value of ``--policy``, or the address of an endpoint."""
    words = with_current_names(sys.argv[1:] if argv is None else argv, "benchmark")
    console = Console()
    with errors_in_one_line(console):
        words = with_policy(words)
        benchmark(
            parse(preset(words), words, prog="python -m harness.benchmark MODEL_OR_ENDPOINT", description=_WHAT),
            console,
        )


if __name__ == "__main__":
    main()
