"""Episodes that were lost by the environment, the host or a hosted model's server, or that an agent failed."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from eh_gym.errors import UserCodeError
from harness.records.episode_log import episode_line
from harness.rollout.conversation import REFUSED
from harness.types.trajectory import Trajectory


class Faults:
    """Stops a run in which the user's own code fails in all episodes, of two updates or of the last one."""

    def __init__(self) -> None:
        self.lost = 0  # updates in a row without another episode
        self._told: set[str] = set()  # the kinds of faults

    def check(self, trajectories: Sequence[Trajectory], *, last: bool) -> str:
        """Returns a note on the episodes of an update that ended by a fault, or empty. `last`: no other follows.

        Lost episodes have a note in every update. Agents that fail have one if most do, or if a cause is new.

        Raises:
            UserCodeError: All did, as in the update before, or in the last one.
        """
        lines = [episode_line(t, {}) for t in trajectories if t.fault]
        self.lost = self.lost + 1 if len(lines) == len(trajectories) else 0
        note = check_faults(lines, len(trajectories), refuse=self.lost > (not last))
        kinds = {_kind(line) for line in lines}
        new, self._told = kinds - self._told, self._told | kinds
        return note if new or any(map(_is_lost, lines)) or 2 * len(lines) > len(trajectories) else ""


def check_faults(lines: Sequence[Mapping[str, Any]], episodes: int, *, refuse: bool = True) -> str:
    """Returns a note with the number of episodes that ended by a fault and the commonest cause; empty without one.

    Raises:
        UserCodeError: All did, and `refuse`.
    """
    how: dict[str, list[Mapping[str, Any]]] = {}
    for line in lines:
        if _is_lost(line):
            what = "were lost by the environment, host or server, and don't count"
        elif REFUSED in line["fault"]:
            what = "ended by a refusal of the server, and count as failures"
        else:
            what = "ended by a failure of the agent, and count as failures"
        how.setdefault(what, []).append(line)
    note = ". ".join(_note(some, episodes, what) for what, some in how.items())
    if lines and refuse and len(lines) == episodes:
        raise UserCodeError(note)
    return note


def _note(lines: Sequence[Mapping[str, Any]], episodes: int, what: str) -> str:
    kind, count = Counter(map(_kind, lines)).most_common(1)[0]
    first = next(line for line in lines if _kind(line) == kind)
    return (
        f"{'all' if len(lines) == episodes else f'{len(lines)} of'} {episodes} episodes {what}. {count} times: "
        f"{first['fault']}. For example task {first['task_id']!r}, step {first['length']}"
        f"{'; its trace is in the episode log' if 'trace' in first else ''}"
    )


def _is_lost(line: Mapping[str, Any]) -> bool:
    return bool(line["end"] == "environment-error")


def _kind(line: Mapping[str, Any]) -> str:
    """A fault without its numbers and quoted texts, which vary."""
    return re.sub(r"\d+|'[^']*'|\"[^\"]*\"", "", line["fault"])
