"""A horizon that grows when the agent succeeds often enough, a published idea close to Elastic Horizon.

K never shrinks, and the lengths of the successes play no part.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from eh_gym.errors import ConfigError, StateError
from eh_gym.horizon.checks import bounds, is_number, positive_int
from eh_gym.horizon.controller import EpisodeOutcome, check_outcome
from eh_gym.horizon.saved import Saved

__all__ = ["ProgressiveHorizon"]


class ProgressiveHorizon(Saved):
    """K grows by `step` when enough of the last episodes succeeded, up to `k_max`.

    This is the idea of "adaptive horizon management" in Progressive Multi-Turn Reinforcement Learning (preprints.org
    202601.0669), which raises the horizon as a measure of performance allows it. Its abstract names no numbers; the rule and the
    defaults here are ours:

        once per update, if `window` episodes were recorded at the present K and at least `threshold` of the last `window`
        succeeded, K = min(K + step, k_max), and the counting begins anew.

    Args:
        k0: K at the start, in steps, >= 1.
        k_max: Upper bound, >= k0.
        step: Steps that K grows by, >= 1.
        threshold: The share of successes from which K grows, in (0, 1].
        window: The number of most recent episodes that the share is taken over, >= 1.

    Raises:
        ConfigError: An argument is out of range.

    >>> controller = ProgressiveHorizon(k0=10, k_max=50, step=5, threshold=0.5, window=2)
    >>> for success in (False, True):
    ...     controller.record(EpisodeOutcome(length=10, horizon=10, success=success))
    >>> controller.update(), controller.horizon
    ({'horizon/k': 15.0, 'horizon/success': 0.5}, 15)
    """

    _names = ("k0", "k_max", "step", "threshold", "window")

    def __init__(self, k0: int = 10, k_max: int = 50, step: int = 5, threshold: float = 0.7, window: int = 100) -> None:
        super().__init__()
        self.k0, self.k_max = bounds(k0, k_max, low_name="k0")
        self.step, self.window = positive_int("step", step), positive_int("window", window)
        if not (is_number(threshold) and 0 < threshold <= 1):
            raise ConfigError(f"threshold must be in (0, 1], got {threshold!r}; 0.7 grows K when 70 % succeed")
        self.threshold = float(threshold)
        self._k = self.k0
        self._successes: deque[bool] = deque(maxlen=self.window)

    @property
    def horizon(self) -> int:
        """The budget K of an episode that starts now, in steps."""
        return self._k

    def record(self, outcome: EpisodeOutcome) -> None:
        """Remembers whether the episode was a success. Thread-safe."""
        check_outcome(outcome)
        with self._lock:
            if outcome.horizon >= self._k:  # an episode that began before the last update had a smaller K
                self._successes.append(bool(outcome.success))

    def update(self) -> dict[str, float]:
        """Moves K once, if enough episodes succeeded.

        Returns:
            ``horizon/k``, the K of the next episodes, and ``horizon/success``, the share of successes that was compared with
            the threshold; NaN before the first episode.
        """
        with self._lock:
            seen = len(self._successes)
            share = sum(self._successes) / seen if seen else float("nan")
            if seen == self.window and share >= self.threshold and self._k < self.k_max:
                self._k = min(self._k + self.step, self.k_max)
                self._successes.clear()
            return {"horizon/k": float(self._k), "horizon/success": share}

    def _state(self) -> dict[str, Any]:
        return {"k": self._k, "successes": list(self._successes)}

    def _load(self, state: Mapping[str, Any]) -> None:
        k, successes = state["k"], state["successes"]
        if not isinstance(k, int) or not self.k0 <= k <= self.k_max:
            raise StateError(f"k must be in {self.k0}..{self.k_max}, got {k!r}; the state was cut or edited")
        if not isinstance(successes, list) or not all(isinstance(s, bool) for s in successes):
            raise StateError(
                f"successes must be a list of true and false, got {successes!r}; the state was cut or edited"
            )
        with self._lock:
            self._k = k
            self._successes = deque(successes, maxlen=self.window)
