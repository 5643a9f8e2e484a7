"""The rollout: how episodes are played."""

from dataclasses import dataclass
from typing import Annotated, Literal

from eh_gym.ranges import Range
from harness.settings.section import FIRST, Changes, Section


@dataclass(frozen=True)
class Rollout(Section):
    """How episodes are played."""

    changes = Changes.RESULT

    rollout: Annotated[Literal["streaming", "lockstep"], Changes.EPISODES] = "streaming"
    """streaming: no episode waits for another one. lockstep: all take turns together, and runs are reproducible bit for
    bit."""
    slots: Annotated[int, Range(0), Changes.MACHINE] = 0
    """The number of environments played at once. 0 takes as many as an update has episodes."""
    temperature: Annotated[float, Range(0, 2)] = 1.0
    """The temperature of the sampled actions. 0 is greedy, and for evaluations alone."""
    max_action_tokens: Annotated[int, Range(1), FIRST] = 1024
    """The most tokens of one action. A longer one is cut and sent as it is."""
    truncated_reward: Literal["zero", "keep"] = "zero"
    """What an episode earns that K, the environment's own limit or the context stops: zero, or its sum if that is less,
    or what it has earned until then (keep; an agent's is what it returns after its stop)."""

    @property
    def keeps_reward(self) -> bool:
        return self.truncated_reward == "keep"
