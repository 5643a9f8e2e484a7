"""A cabinet that can be told to fail, and says where it lives; the tests' Ray nodes find this file."""

import os
import signal
import time

from envs.cabinet.env import CabinetEnv


class FragileCabinet(CabinetEnv):
    def reset(self, *, seed=None, options=None):
        observation, info = super().reset(seed=seed, options=options)
        return observation, {**info, "pid": os.getpid()}

    def step(self, action):
        if action == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if action == "hang":
            time.sleep(3600)
        if action == "raise":
            raise ZeroDivisionError("one of the environment's own")
        return super().step(action)
