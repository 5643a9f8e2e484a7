"""What a controller alone does with the same episodes: beside it stand the adapters to the trainers."""

import gymnasium as gym

import eh_gym

QUICK = {"k0": 10, "k_min": 2, "k_max": 60, "alpha": 0.9, "min_successes": 2}  # an ElasticHorizon's


def update_alone(controller, needs):
    """One update with episodes that succeed after so many steps, if K lets them; returns their outcomes."""
    k = controller.horizon
    outcomes = [eh_gym.EpisodeOutcome(min(n, k), k, n <= k, truncated=n > k) for n in needs]
    for outcome in outcomes:
        controller.record(outcome)
    controller.update()
    return outcomes


def cabinet_lengths(seeds):
    env = gym.make("EH-Cabinet-v0")
    return [env.reset(seed=seed)[1]["optimal_steps"] for seed in seeds]
