"""`python -m harness.benchmark`: plays a benchmark's official tasks with one model, and writes scores that can be compared.

It plays every task once greedily and k times sampled, with the benchmark's own prompt where there is one. It continues after a
stop, says what it costs, prints the scores with the published ones, and writes the benchmark's own result files and a page.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import tyro
from rich.console import Console

from eh_gym.errors import ConfigError
from harness.evaluate import Evaluation, RolloutFlags
from harness.evaluate import run as evaluate
from harness.settings.command_line import errors_in_one_line, parse
from harness.settings.environment import read_env_args
from harness.settings.sampling import SamplingFlags

if TYPE_CHECKING:
    from harness.evaluation.cost import Cost
    from harness.evaluation.result import EvalResult

__all__ = ["Benchmark", "Run", "benchmark", "main"]

_SCRIPTS = ("expert", "empty")


@dataclass(frozen=True)
class Official:
    """How a benchmark is run by its own conventions.

    Attributes:
        splits: The splits that its scores are about.
        args: Further arguments of ``gym.make``.
        horizon: K. It is so large that the benchmark's own limits apply first, if it has any.
    """

    splits: tuple[str, ...]
    args: Mapping[str, Any] = field(default_factory=dict)
    horizon: int = 50


_OFFICIAL = {
    # 8 turns of 21 steps at most; after the 21st step of a turn BFCL ends the entry.
    "EH-BFCL": Official(("all",), {"prompt": "official"}, horizon=200),
    "EH-AppWorld": Official(("test_normal", "test_challenge")),
}


@dataclass(frozen=True)
class TasksFlags:
    """Who plays, and what."""

    player: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL_OR_ENDPOINT")] = ""
    """A run's checkpoint, a Hugging Face folder or a hub id; an OpenAI-compatible endpoint's address, http://HOST:PORT/v1; or
    expert or empty, which need no model."""
    env: str = "EH-BFCL-v0"
    """The id of the environment."""
    out: Path = Path("benchmark")
    """The folder for episodes, scores, result files and page. After a stop, the same command plays the missing episodes."""
    split: str = ""
    """The split of the tasks. Empty takes those of the benchmark's own scores: all for BFCL, both test splits for AppWorld."""
    env_args: str = "{}"
    """Further arguments of gym.make, as a JSON object. One given here replaces the official one of the same name."""
    tasks: int | None = None
    """The number of tasks of each split. By default all: scores of fewer tasks are not official."""
    every: int = 1
    """Take only every N-th task of the split: for BFCL, 40 takes 5 entries of each category."""
    k: int = 8
    """The number of sampled episodes per task, at --temperature. 0 plays greedily only."""
    horizon: int = 0
    """K, in steps. 0 takes one that leaves the benchmark's own limits in force: 200 for BFCL, and 50 for the others."""
    seed: int = 0
    """The seed. Every sampled token is derived from it."""
    keep_tokens: bool = False
    """Also keep the token ids of the episodes, for harness.export tokens. An endpoint gives none."""


@dataclass(frozen=True)
class ModelFlags:
    """A model on this machine."""

    device: str = "auto"
    """The device of a model: cpu, cuda, cuda:1, mps. auto takes a GPU if there is one."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """The type of the model's weights."""
    threads: int = 1
    """The number of torch threads. 0 leaves torch's default."""


@dataclass(frozen=True)
class EndpointFlags:
    """An endpoint."""

    model: str = ""
    """The name of the model at the endpoint."""
    api_key_env: str = "OPENAI_API_KEY"
    """The environment variable that holds the key. A server of your own may need none."""
    retries: int = 4
    """How often a request is sent again, with backoff, after a lost connection or a temporary error."""
    deadline_s: float = 300.0
    """The most seconds that a request may take, its retries included."""


@dataclass(frozen=True)
class Benchmark(SamplingFlags, RolloutFlags, EndpointFlags, ModelFlags, TasksFlags):
    """Plays a benchmark's official tasks once greedily and k times sampled, and writes scores that can be compared."""

    @property
    def official(self) -> Official:
        """The conventions of the environment's benchmark."""
        return _OFFICIAL.get(self.env.rpartition(":")[2].rsplit("-v", 1)[0], Official(("test",)))

    @property
    def name(self) -> str:
        """The name of the player, for tables."""
        return self.model or self.player

    def runs(self) -> list[Run]:
        """Returns the evaluations to play, in their order.

        Raises:
            ConfigError: A flag is wrong, or has no effect on this player.
        """
        if self.k < 0:
            raise ConfigError(f"k must be >= 0, got {self.k}; 0 plays greedily only")
        if self.k and not self.temperature:
            raise ConfigError("--temperature 0 samples nothing; give --k 0 to play greedily only")
        endpoint = self.player.startswith(("http://", "https://"))
        if endpoint and not self.model:
            raise ConfigError(f"{self.player} needs --model NAME, the model's name at the endpoint")
        flags = {
            "policy": "openai" if endpoint else self.player,
            "base_url": self.player if endpoint else "",
            "env": self.env,
            "env_args": json.dumps({**self.official.args, **read_env_args(self.env_args)}),
            "horizon": self.horizon or self.official.horizon,
        }
        shared = asdict(self) | flags
        shared = {name: shared[name] for name in Evaluation.__dataclass_fields__ if name in shared}
        kinds = [("greedy", 0.0, 1)] + ([("sampled", self.temperature, self.k)] if self.k else [])
        if self.player in _SCRIPTS:
            kinds = [("greedy", self.temperature, 1)]
        if self.player == "random":  # its actions are never greedy
            kinds = [("sampled", self.temperature, self.k or 1)]
        found = []
        for split in [self.split] if self.split else self.official.splits:
            for name, temperature, rollouts in kinds:
                chosen = {
                    "split": split,
                    "temperature": temperature,
                    "rollouts": rollouts,
                    "out": self.out / f"{split}-{name}",
                }
                evaluation = Evaluation(**{**shared, **chosen})
                evaluation.checked_environment_args()
                found.append(Run(split, name, evaluation))
        return found


@dataclass(frozen=True)
class Run:
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


def benchmark(config: Benchmark, console: Console) -> dict[str, EvalResult]:
    """Plays the benchmark and writes its files. Returns the result of each evaluation by the name of its folder.

    Raises:
        ConfigError: A flag is wrong, or the folder holds a benchmark with other settings.
        SamplerError: The model or the endpoint fails. The same command plays the rest.
    """
    from harness.evaluation.scores import benchmark_markdown

    runs = config.runs()
    say = console.print
    estimate = _estimate(config, runs)
    say(f"about {estimate} in all: the expert's steps, and 4 characters a token", highlight=False, soft_wrap=True)
    results = {run.folder.name: evaluate(run.evaluation, console) for run in runs}
    cost = _spent(runs)
    say(f"spent: {cost}", highlight=False)
    scores = [(asdict(run.evaluation), asdict(results[run.folder.name])) for run in runs]
    table = benchmark_markdown(config.name, scores, str(cost))
    _write(config, runs, table, console)
    return results


def _estimate(config: Benchmark, runs: Sequence[Run]) -> Cost:
    from harness.evaluation.cost import Cost, estimated_cost
    from harness.evaluation.play import held_out_tasks
    from harness.rollout.environment import Environments

    total = Cost()
    for split in dict.fromkeys(run.split for run in runs):
        args = read_env_args(runs[0].evaluation.env_args)
        environments = Environments(config.env, {"split": split, **args}, slots=1, threads=0)
        tasks = held_out_tasks(environments, config.tasks, every=config.every)
        episodes = sum(run.evaluation.rollouts or 1 for run in runs if run.split == split) * len(tasks)
        total += estimated_cost(environments, tasks, episodes)
    return total


def _spent(runs: Sequence[Run]) -> Cost:
    from harness.evaluation.cost import spent
    from harness.evaluation.folder import read_evaluation
    from harness.run.episode_log import read_episodes

    return spent(line for run in runs for line in read_episodes(read_evaluation(run.folder).episodes))


def _write(config: Benchmark, runs: Sequence[Run], table: str, console: Console) -> None:
    """Writes the table, the benchmark's own result files of the greedy episodes, and the pages."""
    from harness.export import Export, export
    from harness.report import Report, report
    from harness.run.files import write_whole

    console.print(table, highlight=False, soft_wrap=True, markup=False)
    write_whole(config.out / "scores.md", table)
    kind = {"EH-BFCL": "bfcl", "EH-AppWorld": "appworld"}.get(config.env.rpartition(":")[2].rsplit("-v", 1)[0])
    if kind:
        for run in runs:
            if run.name == "greedy":
                export(Export(what=kind, folder=run.folder, out=config.out / kind), console)  # type: ignore[arg-type]
    report(Report(runs=tuple(run.folder for run in runs), out=config.out / "report.html"), console)


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    console = Console()
    with errors_in_one_line(console):
        benchmark(parse(Benchmark(player=tyro.MISSING), argv, prog="python -m harness.benchmark"), console)


if __name__ == "__main__":
    main()
