"""The seconds and tokens of a run so far, in all processes that worked on it."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager


class Clock:
    """Counts the seconds and tokens of training. It stands still until `start`, and during evaluations.

    `state` is what `state_dict` returned in an earlier process of the run; None for a new run.
    """

    def __init__(self, state: Mapping[str, float] | None = None) -> None:
        self._tokens = state["tokens"] if state else 0.0
        self._seconds = state["seconds"] if state else 0.0
        self._since: float | None = None

    def start(self) -> None:
        self._since = time.perf_counter()

    @property
    def seconds(self) -> float:
        return self._seconds + (time.perf_counter() - self._since if self._since is not None else 0.0)

    @contextmanager
    def timed(self, name: str, metrics: dict[str, float]) -> Iterator[None]:
        start = time.perf_counter()
        yield
        metrics[name] = time.perf_counter() - start

    @contextmanager
    def stopped(self, name: str, metrics: dict[str, float]) -> Iterator[None]:
        """Like `timed`, but the seconds of the block do not count as training."""
        with self.timed(name, metrics):
            yield
        self._seconds -= metrics[name]

    def count(self, tokens: float) -> dict[str, float]:
        self._tokens += tokens
        return {"tokens/total": self._tokens, "time/total_s": self.seconds}

    def state_dict(self) -> dict[str, float]:
        return {"tokens": self._tokens, "seconds": self.seconds}
