"""`python -m harness.evaluate`: mean@k and best@k of a policy on held-out tasks, at a fixed K, seed and temperature.

Also without a model: the environment's own expert, random actions, or an agent that says nothing; and with a model behind
an OpenAI-compatible endpoint. Left out: training.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import gymnasium as gym
import numpy as np
import tyro
from gymnasium.envs.registration import EnvSpec
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from rich.table import Table

import eh_gym
from eh_gym import FixedHorizon
from eh_gym.errors import ConfigError, EHError, WorkerError
from harness.endpoint import ChatEndpoint, Usage, play_with_endpoint
from harness.policy import Policy, load_policy
from harness.rollout import EpisodeRequest, RolloutMode, rollout
from harness.runtime import pick_device, pick_dtype, set_threads
from harness.sampling.base import Sampler
from harness.sampling.make import SamplerSettings, make_sampler
from harness.seeding import derive_seed
from harness.trajectory import Trajectory

__all__ = ["EvalResult", "Evaluation", "evaluate_policy", "evaluate_script", "summarise"]

_Z = 1.959964  # two-sided 95 %


@dataclass(frozen=True)
class Evaluation(SamplerSettings):
    """Measures a policy on held-out tasks: mean@k, best@k and their 95 % intervals."""

    env: str = "EH-Cabinet-v0"
    """The environment's id."""
    env_args: str = "{}"
    """Further arguments of gym.make, as a JSON object."""
    policy: str = "expert"
    """expert, random or empty (no model), openai (a model behind an endpoint: --base-url, --model), or a model: a run's
    checkpoint, a Hugging Face folder, a hub id."""
    base_url: str = ""
    """openai's server, usually http://HOST:PORT/v1; empty for OPENAI_BASE_URL, or OpenAI itself."""
    model: str = ""
    """openai's model, as the endpoint calls it."""
    api_key_env: str = "OPENAI_API_KEY"
    """The environment variable with openai's key; a server of your own may need none."""
    retries: int = 4
    """How often a request to openai is sent again after a lost connection or a passing error, with backoff."""
    deadline_s: float = 300.0
    """Seconds that a request to openai may take, its retries included."""
    split: str | None = None
    """By default test for a model, and all for the three that need none, which have nothing to hold out; of AppWorld's
    splits test_normal and dev."""
    tasks: int | None = None
    """How many tasks, in the split's order; by default all of a finite split, and 128 of a generated one."""
    rollouts: int | None = None
    """Episodes per task (k); by default 8, and 1 where all would be alike (expert, empty, greedy)."""
    horizon: int = 50
    """The fixed K."""
    temperature: float = 1.0
    """Of the sampled actions; 0 is greedy."""
    seed: int = 0
    """Every sampled token is derived from it."""
    slots: int = 64
    """Environments stepped at once; of openai also the most requests at a time."""
    rollout: RolloutMode = "lockstep"
    """lockstep: the same to the last bit. streaming: no episode waits for another's environment."""
    max_action_tokens: int = 1024
    """The most tokens of one action."""
    max_observation_tokens: int = 0
    """A longer observation loses its middle; 0 keeps all."""
    budget_hint: str = ""
    """Appended to every observation, with {left} and {horizon} filled in, as in training; empty for none."""
    device: str = "auto"
    """cpu, cuda, cuda:1, mps; auto takes a GPU if there is one."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the weights."""
    threads: int = 1
    """Torch threads; 0 leaves torch's default."""
    out: Path | None = None
    """Where to write the result as JSON."""


@dataclass(frozen=True)
class EvalResult:
    """What an evaluation found.

    Attributes:
        tasks: Number of tasks with an episode that counts.
        rollouts: Episodes per task, the k.
        episodes: That count: all but those lost to a failing environment.
        successes: Successful episodes.
        mean_at_k: Share of successful episodes.
        mean_interval: Its 95 % interval.
        best_at_k: Share of tasks solved at least once.
        best_interval: Its 95 % interval.
        length_mean: Mean steps of all episodes.
        length_success_mean: Mean steps of the successes; None without one.
        length_success_p90: Their 90th percentile; None without one.
        success_lengths: The steps of each success, ascending; what a shorter horizon would have given follows from them.
        steps_per_optimum: Mean of steps over the expert's, of the successes where these are known; else None.
        by_optimum: For each number of steps of the expert, ascending, where it is known: that number, the episodes and the
            successes.
        truncated: Share of episodes stopped by K or the context.
        environment_errors: Episodes lost to a failing environment; they are in no other figure.
        tokens: All tokens of the episodes, prompts and actions; 0 with an endpoint, which gives no tokens.
        usage: What an endpoint has served, as it counts; None without one.
    """

    tasks: int
    rollouts: int
    episodes: int
    successes: int
    mean_at_k: float
    mean_interval: tuple[float, float]
    best_at_k: float
    best_interval: tuple[float, float]
    length_mean: float
    length_success_mean: float | None
    length_success_p90: float | None
    success_lengths: tuple[int, ...]
    steps_per_optimum: float | None
    by_optimum: tuple[tuple[int, int, int], ...]
    truncated: float
    environment_errors: int
    tokens: int
    usage: Usage | None = None


def wilson_interval(p: float, n: float) -> tuple[float, float]:
    """Wilson's 95 % score interval of a share `p` seen in `n` independent trials; never empty at 0 or 1.

    >>> [round(x, 3) for x in wilson_interval(1.0, 100)]
    [0.963, 1.0]
    """
    if n <= 0:
        return 0.0, 1.0
    centre, spread = p + _Z**2 / (2 * n), _Z * math.sqrt(p * (1 - p) / n + _Z**2 / (4 * n**2))
    scale = 1 + _Z**2 / n
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def summarise(trajectories: Sequence[Trajectory]) -> EvalResult:
    """Turns episodes, grouped by task, into figures.

    The interval of mean@k counts tasks, not episodes: the k episodes of a task are alike, so the share's variance is
    taken between tasks and turned into the number of independent episodes that would have it (the design effect).
    """
    valid = [t for t in trajectories if t.end != "environment-error"]
    by_task: dict[int, list[bool]] = {}
    for t in valid:
        by_task.setdefault(t.group, []).append(t.success)
    if not by_task:
        raise ConfigError("every episode ended with an environment error; see the episodes' own errors")
    task_means = np.array([np.mean(s) for s in by_task.values()])
    mean, best = float(np.mean([t.success for t in valid])), float(np.mean([any(s) for s in by_task.values()]))
    n = len(task_means)
    variance = float(task_means.var(ddof=1)) / n if n > 1 else 0.0
    effective = mean * (1 - mean) / variance if variance > 0 else n
    lengths = np.array([t.length for t in valid if t.success], dtype=float)
    over = [t.length / t.optimal_steps for t in valid if t.success and t.optimal_steps]
    return EvalResult(
        tasks=n,
        rollouts=max(len(s) for s in by_task.values()),
        episodes=len(valid),
        successes=sum(t.success for t in valid),
        mean_at_k=mean,
        mean_interval=wilson_interval(mean, min(effective, len(valid))),
        best_at_k=best,
        best_interval=wilson_interval(best, n),
        length_mean=float(np.mean([t.length for t in valid])),
        length_success_mean=float(lengths.mean()) if len(lengths) else None,
        length_success_p90=float(np.percentile(lengths, 90)) if len(lengths) else None,
        success_lengths=tuple(sorted(t.length for t in valid if t.success)),
        steps_per_optimum=float(np.mean(over)) if over else None,
        by_optimum=_by_optimum(valid),
        truncated=float(np.mean([t.truncated for t in valid])),
        environment_errors=len(trajectories) - len(valid),
        tokens=sum(len(t.ids) for t in valid),
    )


def _by_optimum(trajectories: Sequence[Trajectory]) -> tuple[tuple[int, int, int], ...]:
    known: dict[int, list[bool]] = {}
    for t in trajectories:
        if t.optimal_steps:
            known.setdefault(int(t.optimal_steps), []).append(t.success)
    return tuple((steps, len(known[steps]), sum(known[steps])) for steps in sorted(known))


def evaluate_policy(
    policy: Policy,
    sampler: Sampler,
    env_id: str | EnvSpec,
    task_ids: Sequence[str],
    *,
    rollouts: int,
    horizon: int,
    temperature: float,
    seed: int,
    slots: int,
    env_threads: int,
    max_action_tokens: int,
    env_args: dict[str, Any],
    budget_hint: str = "",
    mode: RolloutMode = "lockstep",
    environment_retries: int = 2,
    on_end: Callable[[Trajectory], None] = lambda _: None,
    share: Callable[[Sequence[EpisodeRequest]], Sequence[EpisodeRequest]] = lambda requests: requests,
) -> list[Trajectory]:
    """Plays every task `rollouts` times with a language model at K = `horizon`; `rollout` explains the arguments.

    Of all these episodes, `share` says which are this process's.
    """
    requests = share(_requests(task_ids, rollouts, seed))
    if not requests:
        return []
    slots = min(slots, len(requests))
    controller, threads = FixedHorizon(horizon), min(env_threads, slots)
    envs = eh_gym.make_vec(
        env_id, slots, controller, record=False, budget_hint=budget_hint, max_workers=threads, **env_args
    )
    try:
        return rollout(
            envs,
            sampler,
            policy.chat,
            requests,
            temperature=temperature,
            max_action_tokens=max_action_tokens,
            mode=mode,
            environment_retries=environment_retries,
            on_end=on_end,
        )
    finally:
        envs.close()


def evaluate_script(
    name: str,
    env_id: str,
    task_ids: Sequence[str],
    *,
    rollouts: int,
    horizon: int,
    seed: int,
    env_args: dict[str, Any],
    on_end: Callable[[Trajectory], None] = lambda _: None,
) -> list[Trajectory]:
    """Plays every task without a model: "expert", "random" or "empty"."""
    env = eh_gym.make_vec(env_id, 1, FixedHorizon(horizon), record=False, **env_args).envs[0]
    done: list[Trajectory] = []
    try:
        for request in _requests(task_ids, rollouts, seed):
            t = Trajectory(request.task_id, request.group, horizon)
            try:
                _play_script(name, env, request, t)
            except WorkerError as failure:  # of a reset, or of the expert
                t.end, t.error = "environment-error", str(failure)
            done.append(t)
            on_end(t)
    finally:
        env.close()
    return done


def _play_script(name: str, env: gym.Env[Any, Any], request: EpisodeRequest, t: Trajectory) -> None:
    """Plays one episode without a model into `t`."""
    base: Any = env.unwrapped
    rng = np.random.default_rng(request.seed)
    t.prompt, info = env.reset(seed=request.seed % 2**31, options={"task_id": request.task_id})
    t.optimal_steps = info.get("optimal_steps")
    while "episode" not in info:
        action = base.expert() if name == "expert" else base.random_action(rng) if name == "random" else ""
        _, reward, _, _, info = env.step(action)
        t.reward += float(reward)
    t.success = info["episode"]["success"]
    t.turns = [None] * info["episode"]["length"]  # type: ignore[list-item]  # only their number is looked at
    t.error = info.get("environment_error")
    t.end = "environment-error" if t.error else "horizon" if info["episode"]["truncated"] else "terminated"


def _requests(task_ids: Sequence[str], rollouts: int, seed: int) -> list[EpisodeRequest]:
    return [
        EpisodeRequest(task_id, group, derive_seed(seed, "evaluate", task_id, member))
        for group, task_id in enumerate(task_ids)
        for member in range(rollouts)
    ]


def held_out_tasks(env_id: str | EnvSpec, env_args: dict[str, Any], count: int | None) -> list[str]:
    """The first `count` tasks of a split; None for all, or for 128 where tasks are generated without end."""
    try:
        env = eh_gym.make_vec(env_id, 1, **env_args).envs[0]
    except (gym.error.Error, TypeError) as error:
        name = env_id if isinstance(env_id, str) else env_id.id
        raise ConfigError(f"{name} can't be made with --env-args {json.dumps(env_args)} ({error})") from error
    task_ids = tasks_of(env)
    if count is None:
        count = len(task_ids) if len(task_ids) <= 10_000 else 128
    env.close()
    return list(task_ids[:count])


def tasks_of(env: gym.Env[Any, Any]) -> Sequence[str]:
    """The ids of its split's tasks.

    Raises:
        ConfigError: It has none to name.
    """
    task_ids: Sequence[str] | None = getattr(env.unwrapped, "task_ids", None)
    if task_ids is None:
        name = env.spec.id if env.spec else repr(env.unwrapped)
        raise ConfigError(
            f"{name} has no task_ids, a sequence of the ids that reset(options={{'task_id': …}}) takes; give an --env that "
            "has, such as EH-Cabinet-v0"
        )
    return task_ids


def _default_split(env_id: str, script: bool) -> str:
    if env_id.startswith("EH-AppWorld"):
        return "dev" if script else "test_normal"  # the test splits come without reference solutions
    return "all" if script else "test"


def run(config: Evaluation, console: Console) -> EvalResult:
    """Carries out one evaluation, with a progress bar."""
    env_args = _checked_flags(config)
    script = config.policy in ("expert", "random", "empty")
    split = config.split or _default_split(config.env, script)
    env_args = {"split": split, **env_args}
    tasks = held_out_tasks(config.env, env_args, config.tasks)
    alike = config.policy in ("expert", "empty") or (not script and config.temperature == 0)
    rollouts = config.rollouts or (1 if alike else 8)
    usage = None
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("episodes", total=len(tasks) * rollouts)

        def on_end(_: Trajectory) -> None:
            progress.advance(bar)

        if script:
            played = evaluate_script(
                config.policy,
                config.env,
                tasks,
                rollouts=rollouts,
                horizon=config.horizon,
                seed=config.seed,
                env_args=env_args,
                on_end=on_end,
            )
        elif config.policy == "openai":
            played, usage = play_with_endpoint(
                lambda: _endpoint(config),
                config.env,
                _requests(tasks, rollouts, config.seed),
                horizon=config.horizon,
                slots=config.slots,
                env_args=env_args,
                on_end=on_end,
            )
        else:
            set_threads(config.threads)
            policy = load_policy(
                config.policy,
                dtype=pick_dtype(config.dtype),
                device=pick_device(config.device),
                max_observation_tokens=config.max_observation_tokens or None,
            )
            played = evaluate_policy(
                policy,
                make_sampler(config, policy),
                config.env,
                tasks,
                rollouts=rollouts,
                horizon=config.horizon,
                temperature=config.temperature,
                seed=config.seed,
                slots=config.slots,
                env_threads=config.slots,
                max_action_tokens=config.max_action_tokens,
                mode=config.rollout,
                env_args=env_args,
                budget_hint=config.budget_hint,
                on_end=on_end,
            )
    result = dataclasses.replace(summarise(played), usage=usage)
    name = config.model if config.policy == "openai" else config.policy
    console.print(result_table(f"{name} on {config.env}, split {split}, K = {config.horizon}", result))
    if config.out is not None:
        config.out.write_text(json.dumps({"config": asdict(config), "result": asdict(result)}, default=str, indent=2))
    return result


def _checked_flags(config: Evaluation) -> dict[str, Any]:
    """The environment's arguments; raises ConfigError for flags that would fail, or mislead, after all is loaded or played."""
    _check_endpoint_flags(config)
    for name in ("tasks", "rollouts", "horizon", "slots", "max_action_tokens"):
        value = getattr(config, name)
        if value is not None and value < 1:
            raise ConfigError(f"{name} must be >= 1, got {value}; raise --{name.replace('_', '-')}, or leave it out")
    if not 0 <= config.temperature <= 2:
        raise ConfigError(f"temperature must be >= 0 and <= 2, got {config.temperature}; 0 samples greedily")
    try:
        env_args = json.loads(config.env_args)
    except json.JSONDecodeError as error:
        raise ConfigError(f"env_args is not JSON ({error}); write --env-args '{{\"memory_mb\": 512}}'") from error
    if not isinstance(env_args, dict):
        raise ConfigError(f"env_args must be a JSON object, got {config.env_args!r}")
    if config.out is not None:
        try:
            config.out.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--out {config.out} can't be written ({error}); give another file") from error
    return env_args


def _check_endpoint_flags(config: Evaluation) -> None:
    """Raises ConfigError for flags that the policy does not look at, and would leave the result other than expected."""
    if config.policy != "openai":
        unused = {"base_url", "model"}
        where = "is for --policy openai"
    else:
        unused = {"sampler", "url", "max_context", "max_observation_tokens"}
        where = "is not for --policy openai, whose server has limits of its own"
    for name in sorted(unused):
        if getattr(config, name) != getattr(Evaluation, name):
            raise ConfigError(f"--{name.replace('_', '-')} {where}, got --policy {config.policy}")


def _endpoint(config: Evaluation) -> ChatEndpoint:
    return ChatEndpoint(
        config.model,
        base_url=config.base_url,
        api_key_env=config.api_key_env,
        temperature=config.temperature,
        max_tokens=config.max_action_tokens,
        retries=config.retries,
        deadline_s=config.deadline_s,
    )


def result_table(title: str, result: EvalResult) -> Table:
    """The result as a person reads it."""
    table = Table(title=title, title_justify="left", show_header=False)

    def share(p: float, interval: tuple[float, float]) -> str:
        return f"{100 * p:.1f} %  (95 %: {100 * interval[0]:.1f} to {100 * interval[1]:.1f})"

    table.add_row("successes", f"{result.successes}/{result.episodes}")
    table.add_row(f"mean@{result.rollouts}", share(result.mean_at_k, result.mean_interval))
    table.add_row(f"best@{result.rollouts}", share(result.best_at_k, result.best_interval))
    table.add_row("steps, all / successes / P90", _lengths(result))
    if result.steps_per_optimum is not None:
        table.add_row("steps over the expert's", f"{result.steps_per_optimum:.2f}")
    table.add_row("stopped by K or context", f"{100 * result.truncated:.1f} %")
    if result.environment_errors:
        table.add_row("lost to environment errors", str(result.environment_errors))
    if result.usage is not None:
        table.add_row("requests", str(result.usage.requests))
        table.add_row("tokens, prompt / completion", f"{result.usage.prompt_tokens} / {result.usage.completion_tokens}")
    return table


def _lengths(result: EvalResult) -> str:
    if result.length_success_mean is None or result.length_success_p90 is None:
        return f"{result.length_mean:.1f} / - / -"
    return f"{result.length_mean:.1f} / {result.length_success_mean:.1f} / {result.length_success_p90:.1f}"


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    console = Console()
    try:
        run(tyro.cli(Evaluation, args=argv, prog="python -m harness.evaluate"), console)
    except EHError as error:
        console.print(f"[red]error:[/red] {escape(str(error))}", highlight=False)
        sys.exit(2)


if __name__ == "__main__":
    main()
