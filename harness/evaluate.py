"""`python -m harness.evaluate`: measures mean@k and best@k of a policy on held-out tasks, at a fixed K.

The policy may be a model, a model behind an OpenAI-compatible endpoint, the environment's own expert, random actions, or an agent
that says nothing. With `--out` every episode is kept as soon as it ends, and the same command continues after a stop.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gymnasium as gym
from rich.console import Console
from rich.progress import Progress

from eh_gym.errors import ConfigError, EHError, SamplerError
from harness.settings.agent import AGENT_ENV
from harness.settings.command_line import errors_in_one_line, parse
from harness.settings.evaluate import Evaluation, official
from harness.settings.reasoning import read_template_kwargs
from harness.types.rules import EpisodeRequest, Rules
from harness.types.trajectory import Trajectory

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec

    from harness.evaluation.endpoint import ChatEndpoint
    from harness.evaluation.result import EvalResult
    from harness.rollout.environment import Environments

__all__ = ["Evaluation", "evaluate_policy", "main", "run"]

_PROG = "python -m harness.evaluate"
_SMALL = 50_000_000  # parameters


def run(config: Evaluation, console: Console, *, env: EnvSpec | None = None) -> EvalResult:
    """Carries out one evaluation, with a progress bar. `env` is in place of the environment that the settings name."""
    args = config.checked_environment_args()
    if config.agent:
        config, env = dataclasses.replace(config, env=AGENT_ENV), _agent(config)

    # torch takes seconds to import, and `--help` needs none of it.
    from harness.evaluation.folder import EvaluationFolder
    from harness.evaluation.play import SCRIPTS, evaluation_requests, held_out_tasks
    from harness.evaluation.result import result_table, summarise
    from harness.evaluation.saturation import saturation, saturation_table, steps_of_line
    from harness.records.episode_log import episode_line
    from harness.rollout.environment import Environments

    script = config.policy in SCRIPTS
    split = config.split or _default_split(config.env, script)
    environments = Environments(env or config.env, {"split": split, **args}, config.slots, config.slots)
    count = config.tasks if isinstance(config.tasks, int) else None  # else the file of an agent's tasks
    tasks = held_out_tasks(environments, count, every=config.every)
    alike = config.policy in ("expert", "empty") or (not script and config.temperature == 0)
    rollouts = config.rollouts or (1 if alike else 8)
    of = len(held_out_tasks(environments, None))
    requests = evaluation_requests(tasks, rollouts, config.seed)
    folder = EvaluationFolder(config.out, _kept(config, split)) if config.out else None
    missing = folder.missing(requests) if folder else requests
    if len(missing) < len(requests):
        there = f"{len(requests) - len(missing)} of {len(requests)} episodes are already there"
        console.print(f"{config.out}: {there}", soft_wrap=True, markup=False)
    ended = False  # whether an episode has
    try:
        with Progress(console=console, transient=True) as progress:
            bar = progress.add_task("episodes", total=len(requests), completed=len(requests) - len(missing))

            def on_end(trajectory: Trajectory) -> None:
                nonlocal ended
                ended = ended or bool(trajectory.turns)
                if folder:
                    folder.add(trajectory)
                progress.advance(bar)

            played = _play(config, console, environments, missing, on_end) if missing else []
        lines = folder.lines(requests) if folder else [episode_line(t, {}) for t in played]
        if all(line["end"] == "context" and not line["length"] for line in lines):
            raise ConfigError(
                "no episode's first message leaves room for an answer in the model's context, so nothing was played; raise "
                "--max-context, lower --max-action-tokens, or choose a model with a longer context"
            )
        valid = [line for line in lines if line["end"] != "environment-error"]
        curve = saturation(map(steps_of_line, valid))
        result = dataclasses.replace(
            summarise(lines, whole_split=len(tasks) >= of, endpoint=config.policy == "openai"),
            split_tasks=of,
            saturation=curve,
        )
        if folder:
            folder.end({"config": asdict(config), "result": asdict(result)})
    except (EHError, KeyboardInterrupt) as error:
        if ended or isinstance(error, (SamplerError, KeyboardInterrupt)):
            how = (
                "run the same command again for the rest"
                if folder
                else "nothing is kept; with --out it goes on from here"
            )
            error.args = ("; ".join([*map(str, error.args), how]),)
        raise
    finally:
        if folder:
            folder.close()
    name = config.model if config.policy == "openai" else config.policy
    title = f"{name} on {config.env}, split {split}, K = {config.horizon}"
    console.print(result_table(title, result), markup=False)
    if curve:
        console.print(saturation_table(curve))
    return result


def evaluate_policy(
    policy: str | Path = "expert",
    env: str | Callable[..., gym.Env[Any, Any]] | None = None,
    *,
    show: bool = True,
    **settings: Any,
) -> EvalResult:
    """Measures a policy on held-out tasks at a fixed K, as ``python -m harness.evaluate`` does with the same settings.

    Args:
        policy: Who plays: expert, random, empty, openai (an endpoint), or a model: the folder of a trained one
            (`TrainResult.model`), or a hub id.
        env: An id of gymnasium, or a function that returns an environment; see `harness.api.train`. None for the cabinets.
        show: Print the progress and the result.
        **settings: The other settings of the command, by their names: ``horizon``, ``split``, ``tasks``, ``rollouts``,
            ``temperature``, ``out`` and so on. What is not given has the command's default.

    Raises:
        ConfigError: A setting is out of its range, or does not fit the policy or the environment.
        TypeError: There is no such setting.

    Example:
        >>> from harness import evaluate_policy
        >>> evaluate_policy("expert", "EH-Cabinet-v0", tasks=20, show=False).mean_at_k
        1.0
    """
    from harness.machine.runtime import library_settings
    from harness.rollout.given import name_of, spec_from

    spec, name = (
        (None, env or Evaluation.env) if env is None or isinstance(env, str) else (spec_from(env), name_of(env))
    )
    if settings.get("out"):
        settings["out"] = Path(settings["out"])
    if settings.get("official"):
        settings = official(name) | settings
    with library_settings():
        return run(Evaluation(policy=str(policy), env=name, **settings), Console(quiet=not show), env=spec)


def _kept(config: Evaluation, split: str) -> dict[str, Any]:
    """What the episodes depend on. After more training, the folder of a model has the same name and other weights."""
    from harness.records.files import sha256

    settings, weights = {**config.decisive(), "split": split}, sorted(Path(config.policy).glob("*.safetensors"))
    return settings | {"weights": sha256(*weights)} if weights else settings


def _default_split(env_id: str, script: bool) -> str:
    if env_id.rpartition(":")[2].startswith("EH-AppWorld"):
        return "dev" if script else "test_normal"  # the test splits come without reference solutions
    return "all" if script else "test"


def _play(
    config: Evaluation,
    console: Console,
    environments: Environments,
    requests: Sequence[EpisodeRequest],
    on_end: Callable[[Trajectory], None],
) -> list[Trajectory]:
    """Plays the episodes with the policy that `config` names."""
    from harness.evaluation.play import SCRIPTS, play_policy, play_script

    if config.policy in SCRIPTS:
        return play_script(config.policy, environments, requests, horizon=config.horizon, on_end=on_end)
    if config.policy == "openai":
        from harness.evaluation.play_endpoint import play_with_endpoint

        return play_with_endpoint(
            lambda: _endpoint(config), environments, requests, horizon=config.horizon, on_end=on_end
        )
    from harness.machine.runtime import pick_device, pick_dtype, set_threads
    from harness.model.policy import load_policy
    from harness.sampling.agreement import check_agreement
    from harness.sampling.make import check_engine, make_sampler
    from harness.sampling.vllm.server import VLLMServerSampler

    device = pick_device(config.device)
    check_engine(config, device)
    policy = load_policy(
        config.policy,
        dtype=pick_dtype(config.dtype, device),
        device=device,
        max_observation_tokens=config.max_observation_tokens or None,
        template_kwargs=read_template_kwargs(config.chat_template_kwargs),
        reasoning_format=config.reasoning_format,
    )
    if config.sampler == "transformers" and (note := check_agreement(policy.model, trained=False)):
        console.print(f"note: {note}", highlight=False, markup=False)
    rules = Rules(config.temperature, config.max_action_tokens, mode=config.rollout)
    small = policy.model.num_parameters() < _SMALL
    set_threads(int(small) if config.threads is None else config.threads)
    sampler = make_sampler(config, policy)
    try:
        return play_policy(environments, sampler, policy.chat, requests, rules, horizon=config.horizon, on_end=on_end)
    finally:
        if isinstance(sampler, VLLMServerSampler):
            sampler.close()


def _agent(config: Evaluation) -> EnvSpec:
    from harness.agents.env import agent_spec

    assert config.tasks is not None, "checked_environment_args() refuses an agent without tasks"
    return agent_spec(
        config.agent,
        str(config.tasks),
        at_k=config.at_k,
        timeout_s=config.agent_timeout_s,
        temperature=config.temperature,
    )


def _endpoint(config: Evaluation) -> ChatEndpoint:
    from harness.evaluation.endpoint import ChatEndpoint

    return ChatEndpoint(
        config.model,
        base_url=config.base_url,
        api_key_env=config.api_key_env,
        temperature=config.temperature,
        max_tokens=config.max_action_tokens,
        retries=config.retries,
        deadline_s=config.deadline_s,
        template_kwargs=read_template_kwargs(config.chat_template_kwargs),
    )


def main(argv: Sequence[str] | None = None) -> None:
    """The command line."""
    console = Console()
    with errors_in_one_line(console):
        config = parse(Evaluation(), argv, prog=_PROG)
        if config.official:
            config = parse(Evaluation(**official(config.env)), argv, prog=_PROG)
        run(config, console)


if __name__ == "__main__":
    main()
