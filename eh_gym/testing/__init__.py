"""Tests to inherit for an environment or a horizon controller.

In a test file of your own, for pytest::

    import gymnasium as gym
    from eh_gym.testing import ControllerContract, ExpertEnvContract

    class TestMyEnv(ExpertEnvContract):
        def make(self):
            return gym.make("MyEnv-v0", split="dev")

    class TestMyController(ControllerContract):
        def make(self):
            return MyController(k0=15)

For pytest to show values, put ``pytest.register_assert_rewrite("eh_gym.testing")`` into ``conftest.py``.
"""

from eh_gym.testing.controller import ControllerContract
from eh_gym.testing.environment import ExpertEnvContract, TextEnvContract

__all__ = ["ControllerContract", "ExpertEnvContract", "TextEnvContract"]
