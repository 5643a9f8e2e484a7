"""The names that the package has for Python programs. `harness.__getattr__` loads them when the first one is used."""

from harness.agents.env import AgentEnv
from harness.evaluation.run import evaluate_policy
from harness.settings.environment import Environment
from harness.settings.evaluation import Evaluation
from harness.settings.grpo import GRPOConfig
from harness.settings.loss import Loss
from harness.settings.model import Model
from harness.settings.optimizer import Optimizer
from harness.settings.rollout import Rollout
from harness.settings.run import Run
from harness.settings.sampling import TransformersSampling, VLLMSampling, VLLMServerSampling
from harness.settings.warm_start import WarmStart
from harness.training.api import TrainResult, train

__all__ = [
    "AgentEnv",
    "Environment",
    "Evaluation",
    "GRPOConfig",
    "Loss",
    "Model",
    "Optimizer",
    "Rollout",
    "Run",
    "TrainResult",
    "TransformersSampling",
    "VLLMSampling",
    "VLLMServerSampling",
    "WarmStart",
    "evaluate_policy",
    "train",
]
