"""The cabinet as functions, which the agents of this folder call, and the form of an agent that is a command."""

import asyncio
import inspect
import json
import os
from collections.abc import Callable
from typing import Any

import gymnasium as gym

import eh_gym  # noqa: F401 - registers the cabinet

RULES = (
    "Each drawer of a filing cabinet has a note. 'next f' sends you to drawer f, 'code 7 3' means that the code is 73. "
    "Find the code and submit it. You are told where to start."
)


class Cabinet:
    """One cabinet. Each of its functions takes one text, because a call of the tiny model has one.

    Attributes:
        start: The first message, such as "start c".
        functions: The functions.
        reward: 1.0 once the right code was submitted.
        over: Whether a code was submitted. Then the agent has to end, or else the model's next call may exceed its
            budget.
    """

    def __init__(self, task_id: str):
        self._env = gym.make("EH-Cabinet-v0")
        self.start, _ = self._env.reset(options={"task_id": task_id})
        self.reward, self.over = 0.0, False
        self.functions = [self.open, self.read, self.close, self.list, self.submit]

    def open(self, argument: str) -> str:
        """Opens a drawer.

        Args:
            argument: The drawer's letter.
        """
        return self._step(f"open({argument})")

    def read(self, argument: str = "") -> str:
        """Reads the note in the open drawer.

        Args:
            argument: Nothing.
        """
        return self._step(f"read({argument})")

    def close(self, argument: str = "") -> str:
        """Closes the open drawer.

        Args:
            argument: Nothing.
        """
        return self._step(f"close({argument})")

    def list(self, argument: str = "") -> str:
        """Says which drawer is open.

        Args:
            argument: Nothing.
        """
        return self._step(f"list({argument})")

    def submit(self, argument: str) -> str:
        """Submits the code, which ends the task.

        Args:
            argument: The two digits.
        """
        return self._step(f"submit({argument})")

    def _step(self, action: str) -> str:
        if self.over:
            return "over"
        said, reward, self.over, _, _ = self._env.step(action)
        self.reward += float(reward)
        return said


def as_command(play: Callable[[dict[str, Any], str], Any]):
    """Plays the task of the environment variables, and prints the reward last."""
    reward = play(json.loads(os.environ["EH_TASK"]), os.environ["OPENAI_BASE_URL"])
    print(asyncio.run(reward) if inspect.isawaitable(reward) else reward)
