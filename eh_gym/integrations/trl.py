"""TRL: an elastic ``max_tool_calling_iterations`` for a `trl.GRPOTrainer` with tools."""

import inspect
import itertools
from collections.abc import Callable
from typing import Any

from accelerate.utils import gather_object
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from eh_gym.errors import ConfigError
from eh_gym.horizon.controller import EpisodeOutcome, HorizonController, is_controller, per_episode_rule
from eh_gym.rewards import earned, result_of

__all__ = ["ElasticToolCalls", "ending"]

RewardFunction = Callable[..., list[float | None]]


def ending(messages: Any, ids: Any, environment: Any, eos_token_ids: Any) -> tuple[int, bool, bool | None]:
    """An episode's steps, whether it was stopped, and its environment's verdict; see `ElasticToolCalls`."""
    roles = [message["role"] for message in messages]
    rounds = sum(a != "tool" and b == "tool" for a, b in itertools.pairwise(roles))
    if getattr(environment, "ended", False):  # the agent may still have called tools
        steps, cut = max(1, min(rounds, environment.steps)), bool(getattr(environment, "cut", False))
        return steps, cut, getattr(environment, "success", None)
    calls = not messages or roles[-1] == "tool" or bool(messages[-1].get("tool_calls"))
    return max(1, rounds), calls or not ids or ids[-1] not in eos_token_ids, None


class ElasticToolCalls(TrainerCallback, ExportableState):
    """Gives each generation of a `trl.GRPOTrainer` the controller's K, and tells the controller how its episodes ended.

    A step is a round of answered tool calls; an episode without them has one step. An episode is truncated if its last
    message still calls a tool, or was cut at ``max_completion_length``. If the weighted sum of its rewards is above 0,
    they are then 0 (Elastic Horizon paper, Sec. 3.2). All reward functions are called with the first. An environment
    that can end an episode has the attributes ``ended`` (bool) and ``steps`` (int), as `ToolEnvironment` does, and may
    have ``success`` (bool), its verdict.

    Each generation of training moves K once, with the outcomes of all ranks. An episode for which every reward function
    returns None is not recorded. Evaluation plays under K and records nothing. TRL's checkpoints contain the
    controller's state.

    Args:
        trainer: The trainer. Its reward functions are wrapped, and this object becomes one of its callbacks.
        controller: Decides K.
        success: Tells whether an episode is a success from its weighted sum of rewards. By default the environment's
            verdict does, or without it a sum of at least 1.
        zero_reward_on_truncation: False leaves the rewards of truncated episodes as they are.

    Raises:
        ConfigError: The trainer has no tools, a reward function is a model or asynchronous, or the controller has
            ``horizon_for``, because TRL has one K for all episodes.
    """

    def __init__(
        self,
        trainer: Any,
        controller: HorizonController,
        *,
        success: Callable[[float], bool] | None = None,
        zero_reward_on_truncation: bool = True,
    ) -> None:
        if not is_controller(controller) or per_episode_rule(controller) is not None:
            raise ConfigError(f"controller must have one K for all episodes, got {controller!r}; pass ElasticHorizon()")
        if not getattr(trainer, "tools", None):
            raise ConfigError("the trainer has no tools; pass environment_factory=... or tools=[...] to GRPOTrainer")
        for rule in trainer.reward_funcs:
            if not inspect.isroutine(rule) or inspect.iscoroutinefunction(rule):
                raise ConfigError(f"a reward must be an ordinary function, got {rule!r}; call it inside of one")
        self._trainer, self._controller, self._success = trainer, controller, success
        self._keep = not zero_reward_on_truncation
        self._rules: list[RewardFunction] = trainer.reward_funcs
        self._scores: list[list[float | None]] = []  # by reward function, of the present generation
        trainer.reward_funcs = [self._reward(i) for i in range(len(self._rules))]
        trainer.max_tool_calling_iterations = controller.horizon
        trainer.add_callback(self)

    def _reward(self, which: int) -> RewardFunction:
        def reward(**columns: Any) -> list[float | None]:
            if which == 0:
                self._score(columns)
            return self._scores[which]

        return reward

    def _score(self, columns: dict[str, Any]) -> None:
        """Scores a generation. A stopped episode's sum needs all functions."""
        weights = self._trainer.reward_weights.tolist()
        rows = zip(*[rule(**columns) for rule in self._rules], strict=True)
        k, scored, outcomes = self._trainer.max_tool_calling_iterations, [], []
        for i, row in enumerate(rows):
            environment = columns["environments"][i] if "environments" in columns else None
            told = columns["completions"][i], columns["completion_ids"][i]
            length, cut, verdict = ending(*told, environment, self._trainer.eos_token_ids)
            known = [w * score for w, score in zip(weights, row, strict=True) if score is not None]
            total = sum(known)
            less = earned(total, ended=not cut, keep=self._keep) != total
            scored.append([None if score is None else 0.0 if less else score for score in row])
            if known:
                won = verdict if self._success is None else self._success(total)
                success = result_of(total, ended=not cut, verdict=won).success
                outcomes.append(EpisodeOutcome(length, k, success, truncated=cut))
        self._scores = [list(column) for column in zip(*scored, strict=True)]
        if self._trainer.model.training:
            self._move(outcomes, columns["log_metric"])

    def _move(self, local: list[EpisodeOutcome], log: Callable[[str, float], None]) -> None:
        k = self._trainer.max_tool_calling_iterations
        outcomes: list[EpisodeOutcome] = gather_object(local)
        for outcome in outcomes:
            self._controller.record(outcome)
        metrics = self._controller.update()
        if outcomes:
            metrics["rollout/success"] = sum(o.success for o in outcomes) / len(outcomes)
            metrics["rollout/truncated"] = sum(o.truncated for o in outcomes) / len(outcomes)
        for name, value in {**metrics, "horizon/k": k}.items():
            log(name, value)
        self._trainer.max_tool_calling_iterations = self._controller.horizon

    def state(self) -> dict[str, Any]:
        """The state for TRL's ``trainer_state.json``."""
        return {"args": {}, "attributes": {"controller": self._controller.state_dict()}}

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Continues from the checkpoint of a resumed run."""
        saved = state.stateful_callbacks.setdefault(type(self).__name__, self.state())
        self._controller.load_state_dict(saved["attributes"]["controller"])
        self._trainer.max_tool_calling_iterations = self._controller.horizon
