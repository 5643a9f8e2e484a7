"""One evaluation: mean@k and best@k of a policy on held-out tasks, at a fixed K."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium as gym
from gymnasium.envs.registration import EnvSpec
from rich.console import Console
from rich.progress import Progress

from eh_gym.errors import ConfigError, EHError, SamplerError
from eh_gym.replies import THINK
from harness.evaluation.config_from_run import config_from_run, is_run
from harness.evaluation.endpoint import ChatEndpoint
from harness.evaluation.folder import EvaluationFolder
from harness.evaluation.play import evaluation_requests, held_out_tasks, play_policy, play_script, scripts_of
from harness.evaluation.result import EvalResult, result_table, summarise
from harness.evaluation.saturation import saturation, saturation_table
from harness.records.episode_log import episode_line
from harness.records.files import sha256
from harness.rollout.environment import Environments, environment_spec, name_of, spec_from
from harness.rollout.faults import check_faults
from harness.rollout.slots import OnEnd
from harness.settings.environment import GIVEN
from harness.settings.evaluate import ENDPOINT, EvaluateConfig, default_split, official
from harness.settings.extras import require_extras
from harness.settings.section import advice_in_python, changed, flat, python_names
from harness.terminal.shown import ShownEpisodes
from harness.terminal.texts import print_table, say
from harness.terminal.watch import unreached
from harness.types.request import EpisodeRequest
from harness.types.trajectory import Trajectory


def run(config: EvaluateConfig, console: Console, *, env: EnvSpec | None = None) -> EvalResult:
    require_extras(config)
    plan = _plan(config, env)
    kept = closing(EvaluationFolder(config.out, _kept(config, plan.split))) if config.out else nullcontext()
    with kept as folder, _advice(folder) as ended:
        lines = _episodes(config, console, plan, folder, ended)
        fault = check_faults([line for line in lines if line.get("fault")], len(lines))
        result = dataclasses.replace(
            summarise(lines, whole_split=plan.whole_split, endpoint=config.policy == ENDPOINT),
            not_official=config.departures(whole_split=plan.whole_split),
            saturation=saturation(lines),
            faults=fault,
        )
        if folder:
            folder.end({"config": flat(config), "result": dataclasses.asdict(result)})
    if folder and result.environment_errors:
        fault += f"; the same command plays the {result.environment_errors} lost episodes again"
    valid = (line for line in lines if line["end"] != "environment-error")
    low = unreached((line["reward"], line["success"], line.get("threshold")) for line in valid)
    _show(config, console, plan.split, result, notes=[note for note in (fault, low) if note])
    return result


@dataclasses.dataclass(frozen=True)
class _Plan:
    split: str
    environments: Environments
    requests: Sequence[EpisodeRequest]
    whole_split: bool


def _plan(config: EvaluateConfig, env: EnvSpec | None) -> _Plan:
    wanted, slots = config.environment, max(1, config.rollout.slots)
    hosted = config.policy == ENDPOINT
    made = env or environment_spec(wanted, slots=slots, temperature=config.rollout.temperature, hosted=hosted)
    script = config.policy in scripts_of(wanted.env)
    split = wanted.split or default_split(wanted.env, script)
    environments = Environments.of(wanted, made, slots, split)
    count = wanted.tasks if isinstance(wanted.tasks, int) else None  # otherwise it is the file of an agent's tasks
    tasks = held_out_tasks(environments, count, every=config.every)
    alike = config.policy != "random" if script else config.rollout.temperature == 0
    requests = evaluation_requests(tasks, config.rollouts or (1 if alike else 8), config.seed)
    whole = (count is None and config.every == 1) or len(tasks) >= len(held_out_tasks(environments, None))
    return _Plan(split, environments, requests, whole)


@contextmanager
def _advice(folder: EvaluationFolder | None) -> Iterator[list[Trajectory]]:
    """Yields a list for the episodes that end. An error then says how to go on."""
    ended: list[Trajectory] = []
    try:
        yield ended
    except (EHError, KeyboardInterrupt) as error:
        if any(t.turns for t in ended) or isinstance(error, (SamplerError, KeyboardInterrupt)):
            lost = "nothing is kept; with --out it goes on from here"
            how = "run the same command again for the rest" if folder else lost
            error.args = ("; ".join([*map(str, error.args), how]),)
        raise


def _episodes(
    config: EvaluateConfig, console: Console, plan: _Plan, folder: EvaluationFolder | None, ended: list[Trajectory]
) -> list[dict[str, Any]]:
    count = len(plan.requests)
    missing = folder.missing(plan.requests) if folder else plan.requests
    done = count - len(missing)
    if done:
        say(console, f"{config.out}: {done} of {count} episodes are already there")
    shown = ShownEpisodes(console, [request.seed for request in missing[: config.show]])
    with Progress(console=console, transient=True) as progress:
        bar = progress.add_task("episodes", total=count, completed=done)

        def on_end(trajectory: Trajectory) -> None:
            ended.append(trajectory)
            if folder:
                folder.add(trajectory)
            shown.ended(trajectory)
            progress.advance(bar)

        callbacks: dict[str, OnEnd] = {"on_end": on_end, "on_turn": shown.went_on}
        played = _play(config, console, plan.environments, missing, callbacks, folder) if missing else []
    lines = folder.lines(plan.requests) if folder else [episode_line(t, {}) for t in played]
    if all(line["end"] == "context" and not line["length"] for line in lines):
        raise ConfigError(
            "no episode's first message leaves room for an answer in the model's context, so nothing was played; "
            "raise --max-context, lower --max-action-tokens, or choose a model with a longer context"
        )
    return lines


def _show(config: EvaluateConfig, console: Console, split: str, result: EvalResult, notes: Sequence[str]) -> None:
    name = config.model.model if config.policy == ENDPOINT else config.policy
    played = config.environment.agent or config.environment.env.removeprefix(GIVEN)
    title = f"{name} on {played}, split {split}, K = {config.horizon}"
    title += f"; not official: {', '.join(result.not_official)}" if result.not_official else ""
    print_table(result_table(title, result), console)
    for note in notes:
        say(console, f"note: {note}")
    if result.saturation:
        print_table(saturation_table(result.saturation), console)
        say(console, result.saturation.advice)


def evaluate_policy(
    policy: str | Path = "expert",
    env: str | Callable[..., gym.Env[Any, Any]] | None = None,
    *,
    show: bool | int = True,
    **settings: Any,
) -> EvalResult:
    """Measures a policy on held-out tasks at a fixed K, as ``python -m harness.evaluate`` does with the same settings.

    Args:
        policy: Who plays: expert, random, empty, openai (an endpoint), or a model: the folder of a trained one
            (`TrainResult.model`), or a hub id. With the folder of a run (`TrainResult.folder`) its model plays, and
            what is not given is as in the run: its environment, split, K and limits.
        env: An id of gymnasium, or a function that returns an environment; see `train`. None for the cabinets.
        show: Print the progress and the result, and with a number so many episodes while they are played.
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

    with advice_in_python({name: name for name in python_names(EvaluateConfig())}), library_settings():
        spec = None
        if isinstance(env, str):
            settings["env"] = env
        elif env is not None:
            spec, settings["env"] = spec_from(env), GIVEN + name_of(env)
        if settings.get("official"):
            settings = official(settings.get("env", EvaluateConfig().environment.env)) | settings
        folder = Path(policy)
        base = (
            config_from_run(folder, settings.get("env", "")) if is_run(folder) else EvaluateConfig(policy=str(policy))
        )
        config = changed(base, show=0 if isinstance(show, bool) else show, **settings)
        return run(config, Console(quiet=not show), env=spec)


def _kept(config: EvaluateConfig, split: str) -> dict[str, Any]:
    weights = sorted(Path(config.policy).glob("*.safetensors"))
    return {**config.decisive(), "split": split, **({"weights": sha256(*weights)} if weights else {})}


def _play(
    config: EvaluateConfig,
    console: Console,
    environments: Environments,
    requests: Sequence[EpisodeRequest],
    callbacks: Mapping[str, OnEnd],
    folder: EvaluationFolder | None,
) -> list[Trajectory]:
    k, rollout = config.horizon, config.rollout
    if config.policy in scripts_of(config.environment.env):
        return play_script(config.policy, environments, requests, rollout, horizon=k, **callbacks)
    if config.policy == ENDPOINT:
        from harness.evaluation.play_endpoint import play_with_endpoint

        endpoint = partial(
            ChatEndpoint,
            config.model.model,
            config.endpoint,
            temperature=rollout.temperature,
            max_tokens=rollout.max_action_tokens,
            template_kwargs=config.model.chat_template_kwargs,
            tags=config.model.tags or THINK,
        )
        replies = folder.replies() if folder else None
        return play_with_endpoint(endpoint, environments, requests, rollout, horizon=k, replies=replies, **callbacks)

    # torch takes seconds to import, and the other policies do not need it.
    from harness.machine.runtime import library_settings, pick_device, pick_dtype, set_threads
    from harness.model.policy import load_policy
    from harness.sampling.agreement import check_agreement
    from harness.sampling.make import check_engine, make_sampler

    device = pick_device(config.model.device)
    check_engine(config.sampling, device)
    dtype = pick_dtype(config.model.dtype, device)
    with library_settings():
        policy = load_policy(config.policy, config.model, dtype=dtype, device=device)
    if config.sampling.runs_policy and (note := check_agreement(policy.model)):
        say(console, f"note: {note}")
    set_threads(config.model.threads, policy.model.num_parameters())
    sampler = make_sampler(config.sampling, policy)
    try:
        return play_policy(environments, sampler, policy.chat, requests, rollout, horizon=k, **callbacks)
    finally:
        sampler.close()
