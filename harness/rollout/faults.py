"""Episodes that ended by a fault of the environment, the agent or a hosted model's server."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from eh_gym.errors import UserCodeError
from harness.records.episode_log import episode_line
from harness.types.trajectory import Trajectory


class Faults:
    """Stops a run in which the user's own code fails in all episodes, of two updates or of the last one."""

    def __init__(self) -> None:
        self.lost = 0  # updates in a row without another episode

    def look(self, trajectories: Sequence[Trajectory], *, last: bool) -> str:
        """Returns a note if most episodes of an update ended by a fault; empty if not. `last`: it is the last update.

        Raises:
            UserCodeError: All did, as in the update before, or in the last one.
        """
        self.lost = self.lost + 1 if all(t.fault for t in trajectories) else 0
        lines = [episode_line(t, {}) for t in trajectories if t.fault]
        return check_faults(lines, len(trajectories), refuse=self.lost > (not last))


def check_faults(lines: Sequence[Mapping[str, Any]], episodes: int, *, refuse: bool = True) -> str:
    """Returns a note with the commonest fault if most episodes ended by one; empty if not.

    Args:
        lines: The episodes that ended by a fault, as lines of the log.
        episodes: The number of all of them.
        refuse: Whether it is an error if all did.

    Raises:
        UserCodeError: All did, and `refuse`.
    """
    if not 0 < episodes < 2 * len(lines):
        return ""
    kinds = Counter(_kind(line) for line in lines)
    kind, count = kinds.most_common(1)[0]
    first = next(line for line in lines if _kind(line) == kind)
    how_many = "all" if len(lines) == episodes else f"{len(lines)} of"
    note = (
        f"{how_many} {episodes} episodes ended by a fault of the agent, environment or server, not of the model. "
        f"{count} times: {first['fault']}. For example task {first['task_id']!r}, step {first['length']}"
        f"{'; its trace is in the episode log' if 'trace' in first else ''}"
    )
    if refuse and len(lines) == episodes:
        raise UserCodeError(note)
    return note


def _kind(line: Mapping[str, Any]) -> str:
    """A fault without its numbers and quoted texts, which vary."""
    return re.sub(r"\d+|'[^']*'|\"[^\"]*\"", "", line["fault"])
