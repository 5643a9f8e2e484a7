"""What the scripts of this folder share: CartPole as a task of survival, and what a library's training must show.

`tox run -m libraries` runs each script once, in an environment of its own.
"""

import gymnasium as gym

import eh_gym

K0 = 10


def elastic():
    """The controller: quick, so that a short training moves K."""
    return eh_gym.ElasticHorizon(k0=K0, k_min=5, k_max=40, alpha=0.5, min_successes=10)


def upright(observation, reward, terminated, truncated, info):
    """Returns whether the pole stood until the limit: only its fall ends an episode."""
    return not terminated


def make_cartpole(controller):
    """Makes a CartPole whose limit is the controller's K, without a limit of its own."""
    env = gym.make("CartPole-v1", max_episode_steps=-1)
    return eh_gym.ElasticTimeLimit(env, controller, success=upright, zero_reward_on_truncation=False)


def report(library, ks, heard):
    """Prints how K went. Fails unless the controller heard successes and K grew with them."""
    print(f"{library}: K = {', '.join(map(str, ks))}; {heard} successes in the buffer")
    assert heard >= 10, "the controller heard too few successes"
    assert ks[0] == K0 < ks[-1] <= 40, "K did not grow with the agent"
