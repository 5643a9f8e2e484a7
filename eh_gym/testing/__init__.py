"""Contract tests to inherit: what Elastic Horizon asks of an environment and of a horizon controller.

Written for pytest, which runs the methods named ``test_*`` of a class named ``Test*``; nothing here imports it. In a
test file of your own::

    import gymnasium as gym
    from eh_gym.testing import ControllerContract, ExpertEnvContract

    class TestMyEnv(ExpertEnvContract):
        def make(self):
            return gym.make("MyEnv-v0", split="dev")

    class TestMyController(ControllerContract):
        def make(self):
            return MyController(k0=15)

Every check says what was expected and what came. For pytest to show values beside it, put
``pytest.register_assert_rewrite("eh_gym.testing")`` into ``conftest.py``.
"""

from eh_gym.testing.controller import ControllerContract
from eh_gym.testing.environment import ExpertEnvContract, TextEnvContract

__all__ = ["ControllerContract", "ExpertEnvContract", "TextEnvContract"]
