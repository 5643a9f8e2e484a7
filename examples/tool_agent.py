#!/usr/bin/env python
"""Trains an agent that is a program of its own: a loop around the openai client whose functions open a cabinet's
drawers.

`play` is what a user writes: it gets a task and the address of the model, and returns the verdict. The rest makes a
tiny model that can call these functions a little, and trains it. This draws the figure, from K0 = 10 and from K0 = 50
(on a CPU, minutes):

    python examples/tool_agent.py --updates 20 --out examples/figures/tool-agent.svg
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import openai
from drawing import Log, Logs, draw_k_and_success, train_all

from eh_gym import ElasticHorizon
from harness import Environment, Evaluation, GRPOConfig, Loss, Model, Optimizer, Rollout, WarmStart, train
from harness.clone.cloning import warm_start
from harness.clone.tiny import new_tiny_policy

CABINET = "eh_gym:EH-Cabinet-v0"
TOOLS: list[Any] = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {"type": "object", "properties": {"argument": {"type": "string"}}},
        },
    }
    for name in ("open", "read", "close", "list", "submit")
]


def play(task: dict[str, Any], base_url: str) -> bool:
    """Opens a cabinet by function calls until a code is submitted; returns whether it is the right one."""
    cabinet = gym.make(CABINET)
    start, info = cabinet.reset(options={"task_id": task["id"]})
    messages: list[Any] = [{"role": "system", "content": info["instruction"]}, {"role": "user", "content": start}]
    with openai.OpenAI(base_url=base_url, api_key="any") as client:
        while True:
            reply = client.chat.completions.create(model="policy", messages=messages, tools=TOOLS).choices[0].message
            messages.append(reply)
            for call in reply.tool_calls or ():
                argument = json.loads(call.function.arguments)["argument"]
                result, reward, over, _, _ = cabinet.step(f"{call.function.name}({argument})")
                if over:
                    return reward == 1
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
            if not reply.tool_calls:
                messages.append({"role": "user", "content": "error"})


# The tiny model writes a call as "open(c)". These two say so: how a call and its result look in its tokens, and how to
# read it.
TEMPLATE = (
    "{# the system prompt and the functions are left out #}{% for m in messages %}"
    "{% if m.role in ('user', 'tool') %}<obs>{{ m.content }}<act>"
    "{% elif m.role == 'assistant' %}{{ m.content }}{% for call in m.tool_calls or [] %}"
    "{{ call.function.name }}({{ call.function.arguments.values() | join }}){% endfor %}<eos>{% endif %}{% endfor %}"
)
CALLS = {
    "open_pattern": r"(?P<name>[a-z]+)\(",
    "close": ")",
    "repeats": True,
    "transform": {"type": "function", "function": {"name": "{name}", "arguments": {"argument": "{content}"}}},
}
PARSER = {"start_anchor": "<act>", "fields": {"tool_calls": CALLS, "content": {"close": "<eos>"}}}


def clone(folder: Path, seed: int, settings: WarmStart) -> None:
    """Makes a tiny model that has seen the expert in the cabinets with the shortest chains, and saves it."""
    env = gym.make(CABINET)
    policy = new_tiny_policy(env, seed=seed)
    warm_start(env, policy, settings, seed=seed)
    policy.tokenizer.chat_template = TEMPLATE
    policy.tokenizer.response_template = PARSER
    policy.model.save_pretrained(folder)
    policy.tokenizer.save_pretrained(folder)


def run(k0: int, seed: int, updates: int, settings: WarmStart) -> Log:
    """Trains one run; returns its metrics."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        clone(folder / "clone", seed, settings)
        tasks = [json.dumps({"id": f"train-{number:06d}"}) for number in range(2000)]
        (folder / "tasks.jsonl").write_text("\n".join(tasks))
        config = GRPOConfig(
            updates=updates,
            tasks_per_update=8,
            seed=seed,
            out=folder / "run",
            environment=Environment(agent=f"{Path(__file__).stem}:play", tasks=folder / "tasks.jsonl"),
            model=Model(model=str(folder / "clone"), dtype="float32"),
            horizon=ElasticHorizon(k0=k0),
            rollout=Rollout(rollout="lockstep", max_action_tokens=6),  # lockstep: the same seed gives the same metrics
            loss=Loss(truncated_weight=0.5),
            optimizer=Optimizer(learning_rate=7e-4, adam_beta2=0.99, minibatches=2),
            evaluation=Evaluation(tasks=0),
        )
        return train(config, show=False).history


def main(argv: Sequence[str] | None = None) -> Logs:
    """Trains every run, prints how each ended, and draws them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--k0", type=int, nargs="+", default=[10, 50])
    parser.add_argument("--updates", type=int, default=20)
    parser.add_argument("--batches", type=int, default=500, help="the most batches of cloning")
    parser.add_argument("--out", type=Path, default=Path("tool-agent.svg"))
    args = parser.parse_args(argv)
    clone = GRPOConfig.recipe("quickstart").warm_start
    settings = replace(clone, max_optimal_steps=9, max_batches=args.batches)  # longer episodes than the quick start's
    logs = train_all(
        lambda _, k0, seed: run(k0, seed, args.updates, settings), ["an agent with functions"], args.k0, args.seeds
    )
    draw_k_and_success(logs, "An agent program under GRPO: mean and range of the seeds", "horizon/k", args.out)
    return logs


if __name__ == "__main__":
    main()
