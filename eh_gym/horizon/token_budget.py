"""A horizon in tokens: the closed loop of Elastic Horizon on the tokens of the agent's own successes.

The code that plays the episodes counts the tokens and stops an episode that has used up its budget, as
`harness.rollout.episode` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eh_gym.errors import ConfigError
from eh_gym.horizon.checks import positive_int
from eh_gym.horizon.controller import EpisodeOutcome, check_outcome
from eh_gym.horizon.elastic import ElasticHorizon, Statistic
from eh_gym.horizon.saved import Saved

__all__ = ["ElasticTokenBudget"]


class ElasticTokenBudget(Saved):
    """The budget B of an episode in tokens moves as K does in `ElasticHorizon`; the steps have a fixed limit.

    For agents whose turns differ in length by orders of magnitude, such as models that think: for them K says little
    about the cost of an episode. Once per update, with enough successes in the buffer (Eq. 5 to 7 of the Elastic
    Horizon paper, with tokens in the place of steps):

        B = (1 - alpha) B + alpha clip(P90 of the successes' tokens + delta, b_min, b_max)

    Args:
        b0: B at the start, in tokens, in b_min..b_max.
        b_min: Lower bound of B, in tokens.
        b_max: Upper bound of B, in tokens.
        delta: Headroom above the boundary, in tokens, >= 0.
        k_max: The limit of an episode in steps, which `ElasticTimeLimit` holds.
        alpha: Smoothing, in (0, 1].
        buffer_size: The number of successes that are remembered.
        min_successes: The number of successes from which B moves.
        statistic: The statistic of the successes' tokens that is the boundary.

    Raises:
        ConfigError: An argument is out of range, or a recorded outcome has no tokens.

    >>> controller = ElasticTokenBudget(b0=1000, min_successes=1, alpha=0.5)
    >>> controller.record(EpisodeOutcome(length=4, horizon=50, success=True, tokens=900))
    >>> controller.update()["horizon/token_target"], controller.token_budget, controller.horizon
    (1400.0, 1200, 50)
    """

    def __init__(
        self,
        b0: int = 2000,
        b_min: int = 500,
        b_max: int = 8000,
        delta: float = 500,
        k_max: int = 50,
        alpha: float = 0.1,
        buffer_size: int = 100,
        min_successes: int = 20,
        statistic: Statistic = "p90",
    ) -> None:
        super().__init__()
        self.k_max = positive_int("k_max", k_max)
        try:
            self._loop = ElasticHorizon(b0, b_min, b_max, alpha, delta, buffer_size, min_successes, statistic)
        except ConfigError as error:
            raise ConfigError(
                f"the token budget b0, b_min, b_max and delta are k0, k_min, k_max and delta here: {error}"
            ) from error

    @property
    def horizon(self) -> int:
        """The limit of every episode in steps."""
        return self.k_max

    @property
    def token_budget(self) -> int:
        """The budget B of an episode that starts now, in tokens: those that are written and read after the first prompt."""
        return self._loop.horizon

    def record(self, outcome: EpisodeOutcome) -> None:
        """Remembers the tokens of a success. Thread-safe."""
        tokens = check_outcome(outcome).tokens
        if not tokens:
            raise ConfigError(
                "a token budget needs the tokens of each episode, got an outcome without tokens; "
                "pass EpisodeOutcome(..., tokens=900), or take ElasticHorizon, which counts steps"
            )
        self._loop.record(EpisodeOutcome(tokens, tokens, outcome.success, outcome.truncated))

    def update(self) -> dict[str, float]:
        """Moves B once. Returns ``horizon/k`` in steps, ``horizon/token_budget``, ``…_boundary`` and ``…_target`` in tokens."""
        moved = self._loop.update()
        return {
            "horizon/k": float(self.k_max),
            "horizon/token_budget": moved["horizon/k"],
            "horizon/token_boundary": moved["horizon/boundary"],
            "horizon/token_target": moved["horizon/target"],
            "horizon/buffer_size": moved["horizon/buffer_size"],
        }

    def _state(self) -> dict[str, Any]:
        return {"loop": self._loop.state_dict()}

    def _load(self, state: Mapping[str, Any]) -> None:
        self._loop.load_state_dict(state["loop"])

    def _settings(self) -> dict[str, Any]:
        return {"k_max": self.k_max, "loop": self._loop.state_dict()["settings"]}

    def __repr__(self) -> str:
        names = {"b0": "k0", "b_min": "k_min", "b_max": "k_max", "delta": "delta", "alpha": "alpha"}
        given = ", ".join(f"{own}={getattr(self._loop, name)!r}" for own, name in names.items())
        return f"{type(self).__name__}({given}, k_max={self.k_max})"
