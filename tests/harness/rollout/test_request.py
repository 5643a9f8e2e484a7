"""Whoever plays a request, its episode begins alike."""

import importlib
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from cabinet_agent import ask
from gymnasium.envs.registration import EnvSpec

from eh_gym.registration import ENTRY_POINTS
from envs.backends import BACKENDS
from harness.evaluation.endpoint import EndpointReply
from harness.evaluation.play import SCRIPTS, evaluation_requests, held_out_tasks, play_policy, play_script
from harness.evaluation.play_endpoint import play_with_endpoint
from harness.rollout.environment import Environments
from harness.settings.rollout import Rollout

AGENT = "harness.agents.env:AgentEnv"


class Endpoint(AbstractAsyncContextManager[Any]):
    async def __aexit__(self, *_: Any) -> None: ...

    async def reply(self, *_: Any, **__: Any) -> EndpointReply:
        return EndpointReply("", False)


def agent(task: Any, base_url: str) -> float:
    ask(base_url, [{"role": "user", "content": task["id"]}])
    return 0.0


@pytest.mark.parametrize("env_id", [*ENTRY_POINTS, "agent"])
def test_every_player_begins_a_request_with_the_same_task_and_seed(
    env_id: str, fake: Any, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    is_agent, begun = env_id == "agent", []
    module, _, name = (AGENT if is_agent else ENTRY_POINTS[env_id]).partition(":")
    if (backend := module.split(".")[1]) in BACKENDS:
        request.getfixturevalue(f"{backend}_python")
    spec = EnvSpec("Agent-v0", AGENT, disable_env_checker=True, kwargs={"agent": agent, "tasks": [{"id": "a"}, {"id": "b"}]})
    split = {"agent": "train", "EH-AppWorld-v0": "mini"}.get(env_id, "dev")
    environments = Environments(spec if is_agent else env_id, {"split": split}, slots=1, threads=0)
    requests = evaluation_requests(held_out_tasks(environments, 2), 2, seed=7)
    kind = getattr(importlib.import_module(module), name)
    plain = kind.reset

    def reset(self: Any, **how: Any) -> Any:
        begun.append(how)
        return plain(self, **how)

    monkeypatch.setattr(kind, "reset", reset)
    play_with_endpoint(Endpoint, environments, requests, horizon=1)  # type: ignore[arg-type]
    if not is_agent:
        play_policy(environments, fake.Sampler(), fake.Chat(), requests, Rollout(max_action_tokens=9), horizon=1)  # type: ignore[arg-type]
        for script in SCRIPTS:
            play_script(script, environments, requests, horizon=1)
    asked = [request.reset_arguments() for request in requests]
    assert begun == asked * (1 if is_agent else 2 + len(SCRIPTS))
