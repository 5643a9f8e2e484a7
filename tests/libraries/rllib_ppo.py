#!/usr/bin/env python
"""RLlib's PPO with ElasticTimeLimit in an env runner's process: a SharedHorizon carries K there and the outcomes back.

python tests/libraries/rllib_ppo.py
"""

import ray
from ray.rllib.algorithms.ppo import PPOConfig
from ray.tune.registry import register_env
from survival import elastic, make_cartpole, report

from eh_gym import SharedHorizon

ray.init(num_cpus=2, include_dashboard=False, configure_logging=False)
register_env("elastic-cartpole", lambda settings: make_cartpole(settings["controller"]))
with SharedHorizon(elastic()) as controller:
    config = (
        PPOConfig()
        .environment("elastic-cartpole", env_config={"controller": controller})
        .env_runners(num_env_runners=1, num_envs_per_env_runner=2)
        .training(train_batch_size=512, minibatch_size=128, num_epochs=4, lr=1e-3)
        .debugging(seed=0)
    )
    algorithm = config.build_algo()
    ks = []
    for _ in range(6):
        ks.append(controller.horizon)
        algorithm.train()
        controller.update()
    algorithm.stop()
    report("RLlib", ks, len(controller.state_dict()["lengths"]))
ray.shutdown()
