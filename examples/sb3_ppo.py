#!/usr/bin/env python
"""Stable-Baselines3's PPO with ElasticTimeLimit, compared with gymnasium's TimeLimit at three fixed values.

This draws the figure, with 3 seeds of each limit (one CPU core, about 5 minutes):

    python examples/sb3_ppo.py --seeds 3 --out examples/figures/sb3.svg

The environment is gymnasium's FrozenLake. One step in ten slips sideways. 4 % of the fields are holes. A hole has no
way out, does not end the episode, and does not tell the agent: it is like a mistake that an agent can't undo and
doesn't notice. With a small limit, an episode with a far start never reaches the goal. A large limit wastes the rest of
every lost episode.

`--processes` puts the environments into SubprocVecEnv, where they all read K from one SharedHorizon. examples/README.md
says what to copy.
"""

from __future__ import annotations

import argparse
import functools
import itertools
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from drawing import BLACK, BLUE, GREEN, ORANGE, PURPLE, band, panels, save, smooth
from gymnasium.envs.toy_text.frozen_lake import generate_random_map
from matplotlib.ticker import LogLocator, NullLocator, ScalarFormatter
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv

import eh_gym
from eh_gym import ElasticHorizon, HorizonController, SharedHorizon


class SilentHoles(gym.Wrapper):
    """A hole does not end the episode or tell the agent: an agent that falls in stays there, and wastes every further
    step.
    """

    def reset(self, **kwargs: Any) -> tuple[int, dict[str, Any]]:
        """Starts an episode on the ice."""
        self.hole: int | None = None
        return self.env.reset(**kwargs)

    def step(self, action: int) -> tuple[int, float, bool, bool, dict[str, Any]]:
        """Moves, unless the agent is in a hole."""
        if self.hole is not None:
            return self.hole, 0.0, False, False, {}
        field, reward, terminated, truncated, info = self.env.step(action)
        if terminated and not reward:
            self.hole, terminated = field, False
        return field, reward, terminated, truncated, info


def lake(size: int) -> gym.Env:
    """Makes the environment, without a step limit."""
    fields = [row.replace("F", "S") for row in generate_random_map(size, p=0.96, seed=0)]
    return SilentHoles(gym.make("FrozenLake-v1", desc=fields, success_rate=0.9, max_episode_steps=-1))


def limited_lake(size: int, limit: int, controller: HorizonController | None) -> gym.Env:
    """Makes a lake with the controller's K as its limit, or without one with gymnasium's own limit."""
    if controller is None:
        return gym.wrappers.TimeLimit(lake(size), limit)
    # The lake's info does not say which episodes succeed.
    return eh_gym.ElasticTimeLimit(lake(size), controller, success=lambda field, reward, *_: reward > 0)


class Watch(BaseCallback):
    """Moves K after each rollout, if there is a controller, and logs the rollout's return."""

    def __init__(self, controller: SharedHorizon | None, k: int) -> None:
        super().__init__()
        self.controller, self.k, self.reward = controller, k, 0.0
        self.log: list[tuple[int, int, float]] = []
        """For each rollout: environment steps so far, the K of its new episodes, and its return per 1000 environment
        steps."""

    def _on_step(self) -> bool:
        self.reward += float(self.locals["rewards"].sum())  # the environments' own reward, before any bootstrapping
        return True

    def _on_rollout_end(self) -> None:
        steps = self.locals["n_rollout_steps"] * self.training_env.num_envs
        self.log.append((self.num_timesteps, self.k, 1000 * self.reward / steps))
        self.reward = 0.0
        if self.controller is not None:
            self.controller.update()  # between two rollouts, in the process that owns the controller
            self.k = self.controller.horizon
            self.logger.record("horizon/k", self.k)


def train(limit: int, seed: int, options: argparse.Namespace, *, elastic: bool) -> list[tuple[int, int, float]]:
    """Trains one run with the options of `main`, and returns its log. With `elastic`, `limit` is K0."""
    torch.set_num_threads(1)
    shared = SharedHorizon(ElasticHorizon(k0=limit, k_max=max(150, limit))) if elastic else None
    make = functools.partial(limited_lake, options.size, limit, shared)
    vector: type[VecEnv] = SubprocVecEnv if options.processes else DummyVecEnv
    envs = vector([make] * options.envs)
    try:
        model = PPO(
            "MlpPolicy",
            envs,
            n_steps=128,
            batch_size=256,
            n_epochs=4,
            learning_rate=1e-3,
            ent_coef=0.01,
            seed=seed,
            device="cpu",
        )
        watch = Watch(shared, limit)
        model.learn(options.steps, callback=watch)
    finally:
        envs.close()
        if shared is not None:
            shared.close()
    return watch.log


def main(argv: list[str] | None = None) -> dict[str, list[list[tuple[int, int, float]]]]:
    """Trains the runs, prints how each ended, and draws them."""
    flags = argparse.ArgumentParser(description="PPO with ElasticTimeLimit and with gymnasium's TimeLimit")
    flags.add_argument("--seeds", type=int, default=1)
    flags.add_argument("--steps", type=int, default=64 * 1024, help="the environment steps of a run")
    flags.add_argument("--k0", type=int, nargs="*", default=[15, 150], help="the K at which the elastic runs start")
    flags.add_argument(
        "--limits", type=int, nargs="*", default=[15, 40, 150], help="the limits for gymnasium's TimeLimit"
    )
    flags.add_argument("--envs", type=int, default=8, help="the number of environments of a run")
    flags.add_argument("--size", type=int, default=14, help="the number of fields in a row of the lake")
    flags.add_argument("--processes", action="store_true", help="run the environments in processes")
    flags.add_argument("--out", type=Path)
    args = flags.parse_args(argv)
    runs = {}
    for elastic, limit in [*((True, k0) for k0 in args.k0), *((False, limit) for limit in args.limits)]:
        name = f"elastic from K0 = {limit}" if elastic else f"TimeLimit {limit}"
        runs[name] = [train(limit, seed, args, elastic=elastic) for seed in range(args.seeds)]
        for log in runs[name]:
            late, total = np.mean([row[2] for row in log[-10:]]), args.steps / 1000 * np.mean([row[2] for row in log])
            print(
                f"{name}: K = {log[-1][1]}, return per 1000 steps {late:.1f} in the end, {total:.0f} in all", flush=True
            )
    if args.out:
        draw(runs, args.size, args.out)
    return runs


def draw(runs: dict[str, list[list[tuple[int, int, float]]]], size: int, path: Path) -> None:
    """Draws K and the return by environment steps."""
    figure, axes = panels(2, title=f"PPO on a {size} x {size} lake: mean and range of the seeds")
    for (name, logs), color in zip(runs.items(), itertools.cycle((BLUE, ORANGE, GREEN, PURPLE, BLACK)), strict=False):
        style = {} if name.startswith("elastic") else {"linestyle": "--"}
        x = [steps for steps, *_ in logs[0]]
        for axis, column, width in ((axes[0, 0], 1, 1), (axes[1, 0], 2, 5)):
            lines = [smooth([row[column] for row in log], width) for log in logs]
            band(axis, x, lines, name, color, **style)
    axes[0, 0].set(ylabel="K, steps", yscale="log")
    axes[0, 0].yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes[0, 0].yaxis.set_major_formatter(ScalarFormatter())
    axes[0, 0].yaxis.set_minor_locator(NullLocator())
    axes[1, 0].set(ylabel="return per 1000 steps", xlabel="environment steps")
    axes[1, 0].legend(fontsize=8, frameon=False)
    save(figure, path)


if __name__ == "__main__":
    main()
