"""The warnings of a run while it trains: another policy in the sampler, no signal, a K that is too small, a collapse."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence

__all__ = ["Watch"]

_UPDATES = 10  # compared with as many before them
_APART = 0.3  # nats; in bfloat16 it is about 0.01, and an update behind a little more
_RECENT, _RISE = 6, 0.05  # updates; and the rise of success over them above which a K that binds is no warning
_SHORTER, _WORSE = 0.8, 0.1  # the factor on the lengths, and the loss of success, from which it is a collapse


class Watch:
    """Looks at the metrics of each update and gives each warning once.

    The collapse: the horizon follows the lengths of successes. If the agent gives up its long tasks, the remaining successes are
    short, K falls, and the long tasks become impossible. Over ten updates, compared with the ten before, the P90 of the
    successes' lengths has then fallen (by a fifth or more) together with the success on the tasks whose expert takes longest
    (by 0.1 or more). An agent that learns to need fewer steps keeps the second number.

    A K that is too small: in most of six updates ``horizon/binds`` is 1, and success has not risen by more than 0.05 from their
    first to their second half. An elastic K that begins too low can stay there, since the successes that it allows are short.
    """

    def __init__(self) -> None:
        self._said: set[str] = set()
        self._rows: deque[Mapping[str, float]] = deque(maxlen=2 * _UPDATES)

    def look(self, m: Mapping[str, float]) -> str:
        """Returns a warning with what is wrong after an update and what to do; empty if there is nothing new to say.

        Args:
            m: The update's metrics.
        """
        self._rows.append(m)
        rows = list(self._rows)
        for warning in (_another_policy(m), _too_small(rows[-_RECENT:]), _nothing_learned(m), _collapse(rows)):
            kind = warning.partition(":")[0]  # the numbers of a collapse follow the colon
            if kind and kind not in self._said:
                self._said.add(kind)
                return warning
        return ""


def _too_small(rows: Sequence[Mapping[str, float]]) -> str:
    """A warning if K bound in most of the last updates and success did not rise; empty if not."""
    binds, success = [row.get("horizon/binds", 0.0) for row in rows], [row["rollout/success"] for row in rows]
    half = _RECENT // 2
    if len(rows) < _RECENT or sum(binds) <= half or sum(success[half:]) - sum(success[:half]) > half * _RISE:
        return ""
    return (
        f"K may be too small: it is {rows[-1]['horizon/k_mean']:.0f}, in {sum(binds):.0f} of {_RECENT} updates it ended most "
        "episodes and the longest successes needed at least half of it, and success does not rise. Begin with a larger "
        "--k0, or raise --delta or --k-min. To see what another K would give, evaluate with a larger one: python -m "
        "harness.evaluate --horizon K"
    )


def _collapse(rows: Sequence[Mapping[str, float]]) -> str:
    """A warning if the agent has given up its long tasks; empty if not."""
    if len(rows) < 2 * _UPDATES:
        return ""
    length_before, length = (_mean(half, "rollout/length_success_p90") for half in (rows[:_UPDATES], rows[_UPDATES:]))
    long_before, long = (_mean(half, "rollout/success_long") for half in (rows[:_UPDATES], rows[_UPDATES:]))
    if not (length <= _SHORTER * length_before and long <= long_before - _WORSE):  # NaN is neither
        return ""
    return (
        f"the agent gives up its long tasks: over {_UPDATES} updates the P90 of its successes' lengths fell from "
        f"{length_before:.1f} to {length:.1f} steps, and success on the longest third of the tasks from {long_before:.2f} "
        f"to {long:.2f}. If K has fallen, too, raise --k-min or --delta"
    )


def _mean(rows: Sequence[Mapping[str, float]], name: str) -> float:
    """The mean of the values that are known; NaN if none is."""
    known = [row[name] for row in rows if not math.isnan(row[name])]
    return sum(known) / len(known) if known else math.nan


def _another_policy(m: Mapping[str, float]) -> str:
    """A warning if the sampler computes another policy than the trainer; empty if it computes the same."""
    if not m["train/logp_difference_mean"] > _APART:  # NaN is not
        return ""
    return (
        f"the log-probabilities of the sampler and of the trainer are far apart: {m['train/logp_difference_mean']:.2f} nats in "
        "the mean. The sampler lacks the policy's weights, or computes another model: see train/logp_difference_… on the page of "
        "troubleshooting, and try --sampler transformers"
    )


def _nothing_learned(m: Mapping[str, float]) -> str:
    """A warning if nothing can be learned from an update; empty if something can."""
    if m["rollout/success"] == 0:
        return (
            "no episode succeeded. If this goes on, nothing can be learned: begin with a warm start or a better model, take "
            "easier tasks, or raise --k0 or --max-action-tokens if episodes or actions are cut off"
        )
    if m["train/zero_advantage_groups"] == 1:
        return (
            "all episodes of each group had the same reward, so all advantages are 0. If this goes on, nothing is learned: "
            "raise --group-size, or take tasks that are neither too easy nor too hard"
        )
    return ""
