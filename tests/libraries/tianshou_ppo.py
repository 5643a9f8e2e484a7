#!/usr/bin/env python
"""Tianshou's PPO with ElasticTimeLimit: K moves before each training step, and the buffer takes the infos.

python tests/libraries/tianshou_ppo.py
"""

import numpy as np
import torch
from survival import elastic, make_cartpole, report
from tianshou.algorithm import PPO
from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.trainer import OnPolicyTrainerParams
from tianshou.utils.net.common import Net
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic

torch.manual_seed(0)
np.random.seed(0)
controller = elastic()
envs = DummyVectorEnv([lambda: make_cartpole(controller)] * 4)
envs.seed(0)
net = Net(state_shape=(4,), hidden_sizes=[64])
policy = ProbabilisticActorPolicy(
    actor=DiscreteActor(preprocess_net=net, action_shape=2, softmax_output=False),
    dist_fn=lambda logits: torch.distributions.Categorical(logits=logits),
    action_space=envs.action_space[0],
    action_scaling=False,
)
algorithm = PPO(policy=policy, critic=DiscreteCritic(preprocess_net=net), optim=AdamOptimizerFactory(lr=1e-3))
collector = Collector(algorithm, envs, VectorReplayBuffer(2048, 4))
ks = []


def move_k(epoch, env_step):
    if ks:
        controller.update()
    ks.append(controller.horizon)


algorithm.run_training(
    OnPolicyTrainerParams(
        training_collector=collector,
        max_epochs=2,
        epoch_num_steps=2048,
        collection_step_num_env_steps=512,
        update_step_num_repetitions=4,
        training_fn=move_k,
        verbose=False,
    )
)
buffer = collector.buffer
ended = buffer[:].done
episodes = buffer[:].info.outcome[ended]
assert (episodes.length <= episodes.horizon).all()
assert (buffer[:].info.horizon >= 5).all(), "every transition has its episode's K"
report("Tianshou", ks, len(controller.state_dict()["lengths"]))
