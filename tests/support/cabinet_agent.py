"""Agents that open cabinets: what a user writes. They talk to the model as any HTTP client does."""

import json
import urllib.request
from typing import Any

import gymnasium as gym

import eh_gym  # noqa: F401 - registers the cabinet

MESSAGES = list[dict[str, Any]]


def ask(base_url, messages, **options):
    body = json.dumps({"model": "policy", "messages": messages, **options}).encode()
    request = urllib.request.Request(f"{base_url}/chat/completions", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        return dict(json.load(answer))


def play(task, base_url):
    """Plays a cabinet to its end. The messages are those that EH-Cabinet's episodes have."""
    env = gym.make("EH-Cabinet-v0", split=task.get("cabinets", "train"))
    observation, info = env.reset(seed=0, options={"task_id": task["id"]})
    messages = [
        {"role": "system", "content": info["system_prompt"]},
        {"role": "user", "content": observation},
    ]
    while True:
        said = ask(base_url, messages)["choices"][0]["message"]["content"]
        observation, reward, terminated, truncated, _ = env.step(said)
        if terminated or truncated:
            return float(reward)
        messages += [{"role": "assistant", "content": said}, {"role": "user", "content": observation}]
