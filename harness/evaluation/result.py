"""The result of an evaluation: mean@k, best@k, intervals and lengths; from episodes, and as a table."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from eh_gym.errors import UserCodeError
from eh_gym.rewards import settled
from harness.evaluation.intervals import wilson_interval
from harness.evaluation.saturation import Saturation
from harness.evaluation.shares import Line, Shares, by_task, mean_share, shares_of, valid_of
from harness.records.metrics import mean_reward
from harness.terminal.texts import Table
from harness.types.trajectory import TRUNCATED


@dataclass(frozen=True)
class Part(Shares):
    """The result of the tasks of one environment, category, difficulty or kind, which `kind` and `name` say."""

    kind: str
    name: str


@dataclass(frozen=True)
class Usage:
    """The usage that an endpoint has reported for all requests, one for each step.

    Each one counts the whole conversation, as endpoints bill it without a cache. None if the server did not send all
    counts.
    """

    requests: int
    prompt_tokens: int | None
    completion_tokens: int | None


@dataclass(frozen=True)
class EvalResult(Shares):
    """The result of an evaluation.

    Attributes:
        rollouts: The number of episodes per task, the k.
        best_interval: The 95 % interval of `best_at_k`; likewise `all_interval`.
        length_mean: The mean number of steps of all episodes.
        length_success_mean: That of the successes; None without one. `length_success_p90` is their 90th percentile.
        success_lengths: The number of steps of each success, ascending. It gives the success under shorter horizons.
        steps_per_optimum: The mean of steps / the expert's, over the successes with a known expert; None without them.
        truncated: The share of episodes that K, the environment's own limit or the context stopped.
        environment_errors: The number of episodes that were lost: their environment or endpoint failed.
        agent_failures: The number of episodes that the agent failed. They count as failures.
        faults: What the terminal says of both, with the commonest causes; empty if there were none.
        tokens: The number of tokens in prompts and actions; 0 with an endpoint, which gives no tokens.
        category_mean: The mean of the categories' mean@k, BFCL's multi-turn score; None without categories.
        parts: The results of each environment, if there are several, and of each category, difficulty and kind.
        usage: The usage of an endpoint for the episodes that count; None without an endpoint.
        saturation: Success and tokens under each smaller K, for an agent that is not told K; None during training.
        not_official: With ``--official``, the flags by which the score is not official.
    """

    rollouts: int
    successes: int
    best_interval: tuple[float, float]
    all_interval: tuple[float, float]
    reward_mean: float
    length_mean: float
    length_success_mean: float | None
    length_success_p90: float | None
    success_lengths: tuple[int, ...] = field(repr=False)
    steps_per_optimum: float | None
    truncated: float
    environment_errors: int
    agent_failures: int
    tokens: int
    category_mean: float | None
    parts: tuple[Part, ...] = field(repr=False)
    usage: Usage | None = None
    saturation: Saturation | None = field(default=None, repr=False)
    not_official: tuple[str, ...] = ()
    faults: str = ""


def summarise(episodes: Sequence[Line], *, whole_split: bool = True, endpoint: bool = False) -> EvalResult:
    """Computes the result of episodes, the lines of the log in the order of the requests.

    If not every task of the split was requested, its scenarios are incomplete. If an endpoint has played, the result
    has a `Usage`. Raises UserCodeError if every episode was lost.
    """
    valid = valid_of(episodes)
    # If a reset failed, the scenario of its task is unknown.
    whole = whole_split and {t["task_id"] for t in episodes} == {t["task_id"] for t in episodes if t["kinds"]}
    if not valid:
        raise UserCodeError(
            f"every episode ended with an environment error, the last: {episodes[-1]['error']}; fix the environment"
        )
    shares = shares_of(episodes, whole=whole)
    solved = [t for t in valid if t["success"]]
    lengths = np.array([t["length"] for t in solved], dtype=float)
    over = [t["length"] / t["optimal_steps"] for t in solved if t["optimal_steps"]]
    parts = _parts(episodes, whole=whole)
    categories = [part.mean_at_k for part in parts if part.kind == "category"]
    return EvalResult(
        **vars(shares),
        rollouts=max(map(len, by_task(valid))),
        successes=len(solved),
        best_interval=wilson_interval(shares.best_at_k, shares.tasks),
        all_interval=wilson_interval(shares.all_at_k, shares.tasks),
        reward_mean=mean_share(settled([None if t.get("unscored") else float(t["reward"]) for t in valid])),
        length_mean=mean_share(t["length"] for t in valid),
        length_success_mean=float(lengths.mean()) if len(lengths) else None,
        length_success_p90=float(np.percentile(lengths, 90)) if len(lengths) else None,
        success_lengths=tuple(sorted(t["length"] for t in solved)),
        steps_per_optimum=mean_share(over) if over else None,
        truncated=mean_share(t["end"] in TRUNCATED for t in valid),
        environment_errors=len(episodes) - len(valid),
        agent_failures=sum("fault" in t for t in valid),
        tokens=sum(t["tokens"] for t in valid),
        category_mean=mean_share(categories) if categories else None,
        parts=parts,
        usage=_usage(valid) if endpoint else None,
    )


def _usage(episodes: Iterable[Line]) -> Usage:
    turns = [turn for t in episodes for turn in t["turns"]]
    prompts, written = (sum(turn[name] for turn in turns) for name in ("prompt_tokens", "action_tokens"))
    counted = all(turn["prompt_tokens"] for turn in turns)  # no prompt is empty
    return Usage(len(turns), prompts, written) if counted else Usage(len(turns), None, None)


def _parts(episodes: Sequence[Line], *, whole: bool) -> tuple[Part, ...]:
    groups: dict[tuple[str, str], list[Line]] = {}
    for kind in ("environment", "category", "difficulty", "kind"):
        for t in episodes:
            if kind in t["kinds"]:
                groups.setdefault((kind, t["kinds"][kind]), []).append(t)
    played = [key for key in sorted(groups) if valid_of(groups[key])]
    return tuple(
        Part(kind=kind, name=name, **vars(shares_of(groups[kind, name], whole=whole))) for kind, name in played
    )


def result_table(title: str, result: EvalResult) -> Table:
    rows = [("successes", f"{result.successes}/{result.episodes}"), *_scores(result)]
    rows += mean_reward(vars(result)).items()
    lengths = (result.length_mean, result.length_success_mean, result.length_success_p90)
    texts = ["-" if length is None else f"{length:.1f}" for length in lengths]
    rows.append(("steps, all / successes / P90", " / ".join(texts)))
    if result.steps_per_optimum is not None:
        rows.append(("steps / the expert's", f"{result.steps_per_optimum:.2f}"))
    rows.append(("stopped by K or context", f"{100 * result.truncated:.1f} %"))
    if result.environment_errors:
        rows.append(("lost to environment errors", str(result.environment_errors)))
    if result.agent_failures:
        rows.append(("failed by the agent", str(result.agent_failures)))
    if (usage := result.usage) is not None:
        counts = f"{usage.prompt_tokens} / {usage.completion_tokens}"
        if usage.prompt_tokens is None:
            counts = "not sent by the server with all answers"
        rows += [("requests", str(usage.requests)), ("tokens, prompt / completion", counts)]
    return Table(title, ("", ""), rows)


def _scores(result: EvalResult) -> list[tuple[str, str]]:
    k, scenarios = result.rollouts, result.scenarios_at_k
    tasks = f"mean@{k}" if scenarios is None else "tasks (TGC)"
    rows = [_score(tasks, result.mean_at_k, result.mean_interval)]
    if k > 1:
        rows.append(_score(f"pass@{k} (any of {k})", result.best_at_k, result.best_interval))
        rows.append(_score(f"pass^{k} (all {k})", result.all_at_k, result.all_interval))
    if result.category_mean is not None:
        rows.append(_score("mean of the categories", result.category_mean))
    if scenarios is not None:
        rows.append(_score("scenarios (SGC)", scenarios))
    for part in result.parts:
        rows.append(_score(f"{part.kind} {part.name}", part.mean_at_k, part.mean_interval))
        if part.scenarios_at_k is not None:
            rows.append(_score(f"{part.kind} {part.name}, scenarios", part.scenarios_at_k))
    return rows


def _score(what: str, share: float, interval: Sequence[float] = ()) -> tuple[str, str]:
    ends = " to ".join(f"{100 * end:.1f}" for end in interval)
    return what, f"{100 * share:.1f} %" + (f"  (95 %: {ends})" if ends else "")
