"""Throughput of 64 agents behind the endpoint, compared with the environment that they play, with the same model.

    OMP_NUM_THREADS=1 python benchmarks/agents.py FOLDER --repeats 2 > benchmarks/results/agents-cpu.txt

Both ways play the same episodes of EH-Cabinet under K, in the streaming mode. The agents are functions in the trainer's
process, which keep their connection. The two ways take turns, and medians are printed. CPU time includes the agents'
clients. The last column is the CPU time that a step costs in addition.
"""

from __future__ import annotations

import http.client
import json
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock
from urllib.parse import urlsplit

import gymnasium as gym
import torch
from flags import add_model, new_parser, parse, print_heading, run

import eh_gym
from eh_gym.checked import CheckedEnv
from harness.agents.env import AgentEnv
from harness.clone.tiny import new_tiny_policy
from harness.model.policy import Policy, load_policy
from harness.rollout.ahead import AgentCalls
from harness.rollout.rollout import rollout
from harness.sampling.transformers import TransformersSampler
from harness.settings.rollout import Rollout
from harness.types.request import EpisodeRequest

TASKS = [{"id": f"train-{i:06d}"} for i in range(8)]


def reply(client: http.client.HTTPConnection, path: str, messages: list[dict[str, str]]) -> str | None:
    """Asks the endpoint for a reply; None after the last step."""
    client.request("POST", f"{path}/chat/completions", json.dumps({"model": "policy", "messages": messages}))
    answer = client.getresponse()
    content = answer.read()
    return json.loads(content)["choices"][0]["message"]["content"] if answer.status == 200 else None


def play(task: dict[str, Any], base_url: str) -> float:
    """An agent that plays a cabinet."""
    env = gym.make("EH-Cabinet-v0", disable_env_checker=True)
    observation, info = env.reset(seed=0, options={"task_id": task["id"]})
    messages = [{"role": "system", "content": info["system_prompt"]}, {"role": "user", "content": observation}]
    url = urlsplit(base_url)
    client = http.client.HTTPConnection(url.netloc)
    while (text := reply(client, url.path, messages)) is not None:
        observation, reward, terminated, truncated, _ = env.step(text)
        if terminated or truncated:
            return float(reward)
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": observation}]
    return 0.0


def ask_at_once(task: dict[str, Any], base_url: str) -> float:
    """An agent that makes four calls at once, twice."""
    url = urlsplit(base_url)

    def call(number: int) -> None:
        client = http.client.HTTPConnection(url.netloc)
        reply(client, url.path, [{"role": "user", "content": f"list() {task['id']} {number}"}])
        client.close()

    with ThreadPoolExecutor(4) as threads:
        for start in (0, 4):
            list(threads.map(call, range(start, start + 4)))
    return 1.0


def seconds(make: Callable[[], gym.Env[Any, Any]], policy: Policy, sessions: int, k: int) -> tuple[float, float, int]:
    """The wall and CPU seconds of one rollout with an episode for each session, and its number of steps."""

    def limited() -> gym.Env[Any, Any]:
        return eh_gym.ElasticTimeLimit(CheckedEnv(make()), eh_gym.FixedHorizon(k), record=False)

    envs = eh_gym.ThreadVectorEnv([limited] * sessions)
    requests = [EpisodeRequest(TASKS[i % len(TASKS)]["id"], i % len(TASKS), i) for i in range(sessions)]
    wall, cpu = time.perf_counter(), time.process_time()
    played = rollout(envs, TransformersSampler(policy.model), policy.chat, requests, Rollout(max_action_tokens=8))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    envs.close()
    assert all(t.end != "environment-error" for t in played), [t.error for t in played]
    return wall, cpu, sum(t.length for t in played)


def main() -> None:
    """Prints the table."""
    parser = new_parser(__doc__)
    add_model(parser)  # besides the tiny one
    parser.add_argument("--sessions", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    args = parse(parser, sessions=4, repeats=1)
    torch.set_num_threads(1)
    tiny = new_tiny_policy(gym.make("EH-Cabinet-v0"), seed=0)
    models = {"tiny": tiny} | ({args.model: load_policy(args.model)} if args.model else {})
    print_heading("torch", "transformers")
    print(f"one thread, {args.sessions} sessions, K = 8\n")
    print("model            environment  agents  ratio  environment  agents  ratio   a step more")
    print("                     steps/s of wall time         steps/s of CPU time          CPU us")
    with TemporaryDirectory(prefix="eh-benchmark-") as folder:
        file = Path(folder) / "tasks.jsonl"
        file.write_text("\n".join(map(json.dumps, TASKS)))
        cabinet = partial(gym.make, "EH-Cabinet-v0", disable_env_checker=True)
        for name, policy in models.items():
            ways = (cabinet, partial(AgentEnv, play, file))
            for way in ways:
                seconds(way, policy, min(4, args.sessions), 2)  # warms up
            rows = [[seconds(way, policy, args.sessions, 8) for way in ways] for _ in range(args.repeats)]
            rates = [[statistics.median(row[i][2] / row[i][clock] for row in rows) for i in (0, 1)] for clock in (0, 1)]
            more = 1e6 * (1 / rates[1][1] - 1 / rates[1][0])
            shown = "".join(f"{env:13.1f} {agent:7.1f} {agent / env:6.2f}" for env, agent in rates)
            print(f"{name:15}{shown} {more:12.0f}", flush=True)
        print("\nagents that make four calls at once: steps/s of wall time, calls requested in turn and ahead")
        sessions = max(1, args.sessions // 8)
        for name, policy in models.items():
            agents = partial(AgentEnv, ask_at_once, file)
            ratios, rows = [], []
            for _ in range(args.repeats + 1):  # the first one warms up
                with mock.patch.object(AgentCalls, "waiting", return_value=[]):
                    wall, _, steps = seconds(agents, policy, sessions, 8)
                ahead, _, ahead_steps = seconds(agents, policy, sessions, 8)
                rows.append((steps / wall, ahead_steps / ahead))
                ratios.append(rows[-1][1] / rows[-1][0])
            turn, ahead = (statistics.median(column) for column in zip(*rows[1:], strict=True))
            spread = f"{min(ratios[1:]):.2f} to {max(ratios[1:]):.2f}"
            print(f"{name:15} {sessions} agents: {turn:7.1f} {ahead:7.1f}, ratio {ahead / turn:.2f} ({spread})")


if __name__ == "__main__":
    run(main)
