#!/usr/bin/env python
"""TorchRL's PPO with ElasticTimeLimit: `auto_register_info_dict` writes each step's K into the tensordict.

python tests/libraries/torchrl_ppo.py
"""

import torch
from survival import elastic, make_cartpole, report
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.collectors import Collector
from torchrl.envs import GymWrapper, StepCounter, TransformedEnv
from torchrl.modules import OneHotCategorical, ProbabilisticActor, ValueOperator
from torchrl.objectives import ClipPPOLoss
from torchrl.objectives.value import GAE

torch.manual_seed(0)
controller = elastic()
env = TransformedEnv(GymWrapper(make_cartpole(controller)).auto_register_info_dict(), StepCounter())
logits = nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 2))
actor = ProbabilisticActor(
    TensorDictModule(logits, in_keys=["observation"], out_keys=["logits"]),
    in_keys=["logits"],
    spec=env.action_spec,
    distribution_class=OneHotCategorical,
    return_log_prob=True,
)
critic = ValueOperator(nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 1)), in_keys=["observation"])
advantage = GAE(gamma=0.99, lmbda=0.95, value_network=critic)
loss = ClipPPOLoss(actor, critic)
optimizer = torch.optim.Adam(loss.parameters(), lr=1e-3)
collector = Collector(env, actor, frames_per_batch=512, total_frames=8 * 512)
ks = []
for batch in collector:
    ks.append(controller.horizon)
    for _ in range(4):
        advantage(batch)
        for part in batch.reshape(-1).split(128):
            losses = loss(part)
            optimizer.zero_grad()
            (losses["loss_objective"] + losses["loss_critic"] + losses["loss_entropy"]).backward()
            optimizer.step()
    k, steps = batch["next", "horizon"], batch["next", "step_count"].squeeze(-1)
    assert ((k >= 5) & (steps <= k)).all(), "every step has its episode's K, and no episode is longer"
    assert (steps == k)[batch["next", "truncated"].squeeze(-1)].all()
    controller.update()
collector.shutdown()
report("TorchRL", ks, len(controller.state_dict()["lengths"]))
