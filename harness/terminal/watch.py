"""The warnings of a run while it trains: sampler and trainer disagree, or K is too small."""

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence

_APART = 0.3  # nats; in bfloat16 it is about 0.01, and an update behind a little more
RECENT, _RISE = 6, 0.05  # updates; and the rise of success over them that makes a binding K no problem


class Watch:
    """Checks the metrics of each update and gives each warning once.

    K is too small if ``horizon/binds`` is 1 in most of six updates, and success rises by at most 0.05 from their first
    to their second half. An elastic K that begins too low can stay there, because it allows only short successes.
    """

    def __init__(self) -> None:
        self._said: set[Callable[..., str]] = set()
        self._rows: deque[Mapping[str, float]] = deque(maxlen=RECENT)

    def check(self, m: Mapping[str, float]) -> str:
        """Returns a warning after an update with these metrics, and what to do; empty if there is nothing new."""
        self._rows.append(m)
        for check in (_another_policy, _too_small):
            if check not in self._said and (warning := check(list(self._rows))):
                self._said.add(check)
                return warning
        return ""


def unreached(episodes: Iterable[tuple[float, bool, float | None]]) -> str:
    """A warning if no reward reached the threshold; empty if one did, or all are 0.

    Of each episode the arguments are its reward, success and `Trajectory.threshold`.
    """
    judged = [(reward, success, threshold) for reward, success, threshold in episodes if threshold is not None]
    best, success, threshold = max(judged, default=(0.0, True, 0.0))
    if success or not any(reward for reward, *_ in judged):
        return ""
    return (
        f"no episode reached --success-threshold {threshold:g}; the best earned {best:g}. Lower it, or return "
        "info['success'] when a task ends"
    )


def _too_small(rows: Sequence[Mapping[str, float]]) -> str:
    binds, success = [row.get("horizon/binds", 0.0) for row in rows], [row["rollout/success"] for row in rows]
    half = RECENT // 2
    if len(rows) < RECENT or sum(binds) <= half or sum(success[half:]) - sum(success[:half]) > half * _RISE:
        return ""
    but = "the longest successes needed at least half of it" if sum(success) > 0 else "there was no success"
    return (
        f"K may be too small: it is {rows[-1]['horizon/k_mean']:.0f}, in {sum(binds):.0f} of {RECENT} updates it ended "
        f"most episodes and {but}, and success does not rise. Begin with a larger "
        "--k0, or raise --delta or --k-min. To see what another K would give, evaluate with a larger one: python -m "
        "harness.evaluate --horizon K"
    )


def _another_policy(rows: Sequence[Mapping[str, float]]) -> str:
    difference = rows[-1]["train/logp_difference_mean"]
    if not difference > _APART:  # NaN is not
        return ""
    return (
        f"the log-probabilities of the sampler and of the trainer are far apart: {difference:.2f} nats in "
        "the mean. The sampler lacks the policy's weights, or computes another model: see train/logp_difference_… on "
        "the page of troubleshooting, and try --sampler transformers"
    )
