"""Every kind of end of an episode, and what it has earned: the table of docs/harness.md, for all tests of players."""

from typing import Any, NamedTuple

import gymnasium as gym

from eh_gym import FixedHorizon, UnicodeText

K = 3


class End(NamedTuple):
    """The rewards of an episode's steps, how its last step ends, and what must come of it where K is 3."""

    rewards: list[float]
    terminated: bool = False
    truncated: bool = False
    info: dict[str, Any] = {}  # noqa: RUF012 - never changed
    zero: float = 0.0
    keep: float = 0.0
    success: bool = False
    stopped: bool = False

    @property
    def own(self):
        return self.rewards[:K]

    @property
    def paid(self):
        return not self.stopped and self.keep > 0


_SOLVED = {"terminated": True, "truncated": True, "info": {"success": True}}
ENDS = {
    "solved": End([0.3, 0.5], terminated=True, info={"success": True}, zero=0.8, keep=0.8, success=True),
    "failed": End([0.7, 0.5], terminated=True, info={"success": False}, zero=1.2, keep=1.2),
    "enough": End([0.9, 0.1 - 1e-12], terminated=True, zero=1.0, keep=1.0, success=True),
    "too little": End([0.5, 0.4], terminated=True, zero=0.9, keep=0.9),
    "solved as a limit ended it": End([0.3, 0.5], **_SOLVED, zero=0.8, keep=0.8, success=True),
    "solved on step K as a limit ended it": End([0.3, 0.4, 0.1], **_SOLVED, zero=0.8, keep=0.8, success=True),
    "on step K": End([0.5, 0.5, -3.0], terminated=True, info={"success": False}, zero=-2.0, keep=-2.0),
    "K": End([0.4, 0.4, 0.4, 0.4], keep=1.2, stopped=True),
    "K, in balance": End([1.0, -2.0, 1.0, 0.0], stopped=True),
    "K, steps cost": End([-1.0, -1.0, -1.0, -1.0], zero=-3.0, keep=-3.0, stopped=True),
    "K, below 0 and up again": End([1.0, -3.0, 1.0, 5.0], zero=-1.0, keep=-1.0, stopped=True),
    "K, above 0 and down again": End([3.0, 1.0, -1.0, -9.0], keep=3.0, stopped=True),
    "its own limit": End([0.6, 0.6], truncated=True, info={"success": True}, keep=1.2, stopped=True),
    "its own limit, steps cost": End([-1.0, -1.0], truncated=True, zero=-2.0, keep=-2.0, stopped=True),
    "its own limit on step K": End([0.4, 0.4, 0.4], truncated=True, keep=1.2, stopped=True),
}


class Heard(FixedHorizon):
    def __init__(self, k):
        super().__init__(k)
        self.outcomes = []

    def record(self, outcome):
        self.outcomes.append(outcome)


class Endings(gym.Env[str, str]):
    task_ids = list(ENDS)  # noqa: RUF012 - the contract's attribute

    def __init__(self):
        self.observation_space = self.action_space = UnicodeText(1000)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        task_id = (options or {})["task_id"]
        self.end, self.steps = ENDS[task_id], 0
        return "begin", {"task_id": task_id, "system_prompt": ""}

    def step(self, action):
        reward, self.steps = self.end.rewards[self.steps], self.steps + 1
        if self.steps < len(self.end.rewards):
            return "go on", reward, False, False, {}
        return "over", reward, self.end.terminated, self.end.truncated, dict(self.end.info)


gym.register("Endings-v0", Endings, disable_env_checker=True, order_enforce=False)
