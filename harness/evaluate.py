"""`python -m harness.evaluate`: mean@k and best@k of a policy on held-out tasks, at a fixed K, seed and temperature.

Also without a model: the environment's own expert, random actions, or an agent that says nothing; and with a model behind
an OpenAI-compatible endpoint. With `--out` every episode is kept from the moment that it ends, and the same command goes on
where it was stopped. Left out: training.
"""

from __future__ import annotations

import dataclasses
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

import eh_gym
from eh_gym import FixedHorizon
from eh_gym.errors import ConfigError, EHError, SamplerError, WorkerError
from harness.endpoint import ChatEndpoint, Usage, play_with_endpoint
from harness.environment import make_environment, read_env_args, tasks_of
from harness.eval_result import EvalResult, result_table, summarise
from harness.evaluation_folder import EvaluationFolder
from harness.policy import Policy, load_policy
from harness.rollout import EpisodeRequest, RolloutMode, rollout
from harness.runtime import pick_device, pick_dtype, set_threads
from harness.sampling.base import Sampler
from harness.sampling.make import SamplerSettings, make_sampler
from harness.seeding import derive_seed
from harness.trajectory import Trajectory, Turn

__all__ = ["Evaluation", "evaluate_policy", "evaluate_script", "evaluation_requests"]

_SCRIPTS = ("expert", "random", "empty")
# Which episodes are played, where and how fast: one evaluation may go on with others of these.
_NOT_DECISIVE = (
    *("tasks", "rollouts", "out", "device", "threads", "slots", "rollout"),
    *("base_url", "api_key_env", "retries", "deadline_s"),
    *("url", "tensor_parallel", "gpu_memory_utilization"),
)


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
    """A folder for the episodes, each from the moment that it ends, and the result; the same command goes on after a stop."""

    def decisive(self) -> dict[str, Any]:
        """The settings that an episode depends on, beside its task and seed."""
        return {name: value for name, value in asdict(self).items() if name not in _NOT_DECISIVE}


def evaluate_policy(
    policy: Policy,
    sampler: Sampler,
    env_id: str | EnvSpec,
    requests: Sequence[EpisodeRequest],
    *,
    horizon: int,
    temperature: float,
    slots: int,
    env_threads: int,
    max_action_tokens: int,
    env_args: dict[str, Any],
    budget_hint: str = "",
    mode: RolloutMode = "lockstep",
    environment_retries: int = 2,
    on_end: Callable[[Trajectory], None] = lambda _: None,
) -> list[Trajectory]:
    """Plays episodes with a language model at K = `horizon`; `rollout` explains the arguments."""
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
    requests: Sequence[EpisodeRequest],
    *,
    horizon: int,
    env_args: dict[str, Any],
    on_end: Callable[[Trajectory], None] = lambda _: None,
) -> list[Trajectory]:
    """Plays episodes without a model: "expert", "random" or "empty"."""
    env = eh_gym.make_vec(env_id, 1, FixedHorizon(horizon), record=False, **env_args).envs[0]
    needed = {"expert": "expert", "random": "random_action"}.get(name)
    if needed and not hasattr(env.unwrapped, needed):
        env.close()
        raise ConfigError(
            f"--policy {name} needs an environment with {needed}(), which {env.unwrapped!r} lacks; choose another"
        )
    done: list[Trajectory] = []
    try:
        for request in requests:
            t = Trajectory(request.task_id, request.group, horizon, request.seed)
            try:
                _play_script(name, env, t)
            except WorkerError as failure:  # of a reset, or of the expert
                t.end, t.error = "environment-error", str(failure)
            done.append(t)
            on_end(t)
    finally:
        env.close()
    return done


def _play_script(name: str, env: gym.Env[Any, Any], t: Trajectory) -> None:
    """Plays the episode of `t`'s task and seed without a model, into `t`."""
    base: Any = env.unwrapped
    rng = np.random.default_rng(t.seed)
    t.prompt, info = env.reset(seed=t.seed % 2**31, options={"task_id": t.task_id})
    t.system_prompt, t.optimal_steps = info["system_prompt"], info.get("optimal_steps")
    while "episode" not in info:
        action = base.expert() if name == "expert" else base.random_action(rng) if name == "random" else ""
        observation, reward, _, _, info = env.step(action)
        t.turns.append(Turn(action, observation, cut=False, malformed=bool(info.get("malformed", False))))
        t.reward += float(reward)
    t.success = info["episode"]["success"]
    t.error = info.get("environment_error")
    t.end = "environment-error" if t.error else "horizon" if info["episode"]["truncated"] else "terminated"


def evaluation_requests(task_ids: Sequence[str], rollouts: int, seed: int) -> list[EpisodeRequest]:
    """The episodes of an evaluation, `rollouts` of each task; a task's are the same whatever else is played."""
    return [
        EpisodeRequest(task_id, group, derive_seed(seed, "evaluate", task_id, member))
        for group, task_id in enumerate(task_ids)
        for member in range(rollouts)
    ]


def held_out_tasks(env_id: str | EnvSpec, env_args: dict[str, Any], count: int | None) -> list[str]:
    """The first `count` tasks of a split; None for all, or for 128 where tasks are generated without end."""
    env = make_environment(env_id, env_args)
    task_ids = tasks_of(env)
    if count is None:
        count = len(task_ids) if len(task_ids) <= 10_000 else 128
    env.close()
    return list(task_ids[:count])


def _default_split(env_id: str, script: bool) -> str:
    if env_id.startswith("EH-AppWorld"):
        return "dev" if script else "test_normal"  # the test splits come without reference solutions
    return "all" if script else "test"


def run(config: Evaluation, console: Console) -> EvalResult:
    """Carries out one evaluation, with a progress bar."""
    env_args = _checked_flags(config)
    script = config.policy in _SCRIPTS
    split = config.split or _default_split(config.env, script)
    env_args = {"split": split, **env_args}
    tasks = held_out_tasks(config.env, env_args, config.tasks)
    alike = config.policy in ("expert", "empty") or (not script and config.temperature == 0)
    rollouts = config.rollouts or (1 if alike else 8)
    requests = evaluation_requests(tasks, rollouts, config.seed)
    folder = EvaluationFolder(config.out, {**config.decisive(), "split": split}) if config.out else None
    missing = folder.missing(requests) if folder else requests
    if len(missing) < len(requests):
        console.print(f"{config.out}: {len(requests) - len(missing)} of {len(requests)} episodes are there")
    try:
        with Progress(console=console, transient=True) as progress:
            bar = progress.add_task("episodes", total=len(requests), completed=len(requests) - len(missing))

            def on_end(trajectory: Trajectory) -> None:
                if folder:
                    folder.add(trajectory)
                progress.advance(bar)

            played, usage = _play(config, missing, env_args, on_end) if missing else ([], None)
        before = folder.played(requests) if folder else []
        result = dataclasses.replace(summarise([*before, *played]), usage=usage)
        if folder:
            folder.end({"config": asdict(config), "result": asdict(result)})
    except SamplerError as error:
        rest = "run the same command again for the rest" if folder else "with --out FOLDER they would be kept"
        raise SamplerError(f"{error}; {rest}") from error
    finally:
        if folder:
            folder.close()
    name = config.model if config.policy == "openai" else config.policy
    console.print(result_table(f"{name} on {config.env}, split {split}, K = {config.horizon}", result))
    return result


def _play(
    config: Evaluation,
    requests: Sequence[EpisodeRequest],
    env_args: dict[str, Any],
    on_end: Callable[[Trajectory], None],
) -> tuple[list[Trajectory], Usage | None]:
    """The episodes, by whoever plays them; and what an endpoint counted."""
    if config.policy in _SCRIPTS:
        return evaluate_script(
            config.policy, config.env, requests, horizon=config.horizon, env_args=env_args, on_end=on_end
        ), None
    if config.policy == "openai":
        return play_with_endpoint(
            lambda: _endpoint(config),
            config.env,
            requests,
            horizon=config.horizon,
            slots=config.slots,
            env_args=env_args,
            on_end=on_end,
        )
    set_threads(config.threads)
    policy = load_policy(
        config.policy,
        dtype=pick_dtype(config.dtype),
        device=pick_device(config.device),
        max_observation_tokens=config.max_observation_tokens or None,
    )
    return evaluate_policy(
        policy,
        make_sampler(config, policy),
        config.env,
        requests,
        horizon=config.horizon,
        temperature=config.temperature,
        slots=config.slots,
        env_threads=config.slots,
        max_action_tokens=config.max_action_tokens,
        mode=config.rollout,
        env_args=env_args,
        budget_hint=config.budget_hint,
        on_end=on_end,
    ), None


def _checked_flags(config: Evaluation) -> dict[str, Any]:
    """The environment's arguments; raises ConfigError for flags that would fail, or mislead, after all is loaded or played."""
    _check_endpoint_flags(config)
    for name in ("tasks", "rollouts", "horizon", "slots", "max_action_tokens"):
        value = getattr(config, name)
        if value is not None and value < 1:
            raise ConfigError(f"{name} must be >= 1, got {value}; raise --{name.replace('_', '-')}, or leave it out")
    if not 0 <= config.temperature <= 2:
        raise ConfigError(f"temperature must be >= 0 and <= 2, got {config.temperature}; 0 samples greedily")
    return read_env_args(config.env_args)


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


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    console = Console()
    try:
        run(tyro.cli(Evaluation, args=argv, prog="python -m harness.evaluate"), console)
    except EHError as error:
        console.print(f"[red]error:[/red] {escape(str(error))}", highlight=False, soft_wrap=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
