#!/usr/bin/env python
"""An LLM agent of your own plays a text environment: a loop around gym.make and any OpenAI-compatible endpoint.

    python examples/llm_agent.py --base-url http://localhost:8000/v1 --model Qwen/Qwen2.5-7B-Instruct --env
    EH-Cabinet-v0

To measure a model, use `python -m harness.evaluate --policy openai`. Change this script as you like: another prompt, a
scratchpad, another client.
"""

from __future__ import annotations

import argparse
import os

import gymnasium as gym
from openai import OpenAI

import eh_gym


def main(argv: list[str] | None = None) -> bool:
    """Plays one episode, prints it, and returns its verdict."""
    flags = argparse.ArgumentParser(description="Plays one episode with an LLM agent and prints it as it goes")
    flags.add_argument("--base-url")
    flags.add_argument("--model", required=True)
    flags.add_argument("--env", default="EH-Cabinet-v0")
    flags.add_argument("--horizon", type=int, default=50)
    flags.add_argument("--seed", type=int, default=0)
    args = flags.parse_args(argv)

    client = OpenAI(base_url=args.base_url, api_key=os.environ.get("OPENAI_API_KEY", "none"))
    env = eh_gym.ElasticTimeLimit(gym.make(args.env), eh_gym.FixedHorizon(args.horizon))
    observation, info = env.reset(seed=args.seed)
    messages = [{"role": "system", "content": info["system_prompt"]}, {"role": "user", "content": observation}]
    print(f"task {info['task_id']}: {observation}")
    terminated = truncated = False
    while not (terminated or truncated):
        answer = client.chat.completions.create(model=args.model, messages=messages, seed=args.seed)
        action = answer.choices[0].message.content or ""
        observation, _, terminated, truncated, info = env.step(action)
        print(f"> {action}\n{observation}")
        messages += [{"role": "assistant", "content": action}, {"role": "user", "content": observation}]
    episode = info["outcome"]
    print(f"{'success' if episode['success'] else 'failure'} after {episode['length']} steps, truncated: {truncated}")
    env.close()
    return episode["success"]


if __name__ == "__main__":
    main()
