"""The bookkeeping of a rollout: which episode plays in which slot, and which ones wait."""

import functools
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from eh_gym.vector import ThreadVectorEnv
from eh_gym.vector.thread import ResetResult, StepResult
from harness.rollout.ahead import CallsAhead
from harness.rollout.conversation import Converse
from harness.rollout.episode import Episode, Next
from harness.settings.rollout import Rollout
from harness.types.request import EpisodeRequest
from harness.types.trajectory import Trajectory

_FILLED = 0.9  # the share of a sampler's cache that episodes may fill; a turn adds to it

Steps = list[tuple[int, Future[StepResult]]]
"""Steps of environments: the slot of each, and its future answer."""

OnEnd = Callable[[Trajectory], None]
"""Called with each trajectory when it ends."""


class Slots:
    """The episodes that play, and those that wait for a slot.

    An episode's number, in the order of `add`, is its session at the player. If the environment of a slot fails, the
    slot is reset for the next attempt. An environment with a worker process then gets a new one.

    If a sampler has caches of fixed size, only as many episodes of each play as it can hold, the oldest first
    (`fits`). This never changes what an episode samples.
    """

    def __init__(
        self, envs: ThreadVectorEnv, player: CallsAhead, converse: Converse, on_turn: OnEnd = lambda _: None
    ) -> None:
        self._envs, self._player, self._converse, self._on_turn = envs, player, converse, on_turn
        self._added = 0
        self._waiting: deque[tuple[int, EpisodeRequest, Rollout, OnEnd]] = deque()
        self._live: dict[int, tuple[Episode, OnEnd]] = {}  # by slot
        self._ready: dict[int, Any] = {}  # the turns that come next, by slot
        self._prompt = 0  # the most tokens of a first prompt; assumed for episodes without one
        self._slot_of: dict[Hashable, int] = {}  # by session
        self._to_reset: list[int] = []  # slots whose environment has failed

    def add(
        self, requests: Sequence[EpisodeRequest], settings: Rollout, on_end: Callable[[int, Trajectory], None]
    ) -> None:
        self._waiting += [(self._added + i, r, settings, functools.partial(on_end, i)) for i, r in enumerate(requests)]
        self._added += len(requests)

    @property
    def unfinished(self) -> bool:
        return bool(self._waiting or self._live)

    def start_resets(self) -> list[tuple[int, Future[ResetResult]]]:
        """Resets free slots for waiting episodes that fit, and failed slots for another attempt."""
        slots, self._to_reset = self._to_reset, []
        more = min(len(self._waiting), self._envs.num_envs - len(self._live))
        free = [slot for slot in range(self._envs.num_envs) if slot not in self._live][:more] if more else []
        filled: dict[Hashable, int] = {}
        if free:
            self._admitted(filled)
        for slot in free:
            if not self._fits(self._waiting[0][0], self._prompt, filled):
                self._player.end_session(self._waiting[0][0])  # gives its place up
                break
            number, request, settings, on_end = self._waiting.popleft()
            episode = Episode(number, request, settings, self._converse)
            self._live[slot] = episode, on_end
            self._slot_of[number] = slot
            slots.append(slot)
        return [
            (slot, self._envs.submit_reset(slot, **self._live[slot][0].request.reset_arguments())) for slot in slots
        ]

    def reset_answered(self, slot: int, answer: Future[ResetResult]) -> Steps:
        episode = self._live[slot][0]
        needed = episode.reset_answered(answer)
        self._prompt = max(self._prompt, len(episode.trajectory.ids))
        self._on_turn(episode.trajectory)
        return self._go_on(slot, needed)

    def turns(self) -> Mapping[int, Any]:
        if not self._ready:
            return {}
        admitted = self._admitted({})
        return {slot: self._ready.pop(slot) for slot in list(self._ready) if self._live[slot][0].session in admitted}

    def act(self, session: Hashable, reply: Any) -> Steps:
        slot = self._slot_of[session]
        return self._go_on(slot, self._live[slot][0].act(reply))

    def step_answered(self, slot: int, answer: Future[StepResult]) -> Steps:
        """Waits for the answer to a step and records it. The verdict of a stopped agent comes as a further answer."""
        episode = self._live[slot][0]
        needed = episode.step_answered(answer)
        self._on_turn(episode.trajectory)
        return self._go_on(slot, needed)

    def _admitted(self, filled: dict[Hashable, int]) -> set[Hashable]:
        """The oldest episodes of each cache, which may play. `filled` gets the tokens of each cache."""
        return {
            episode.session
            for episode, _ in self._live.values()  # by beginning
            if self._fits(episode.session, len(episode.trajectory.ids) or self._prompt, filled)
        }

    def _fits(self, session: Hashable, tokens: int, filled: dict[Hashable, int]) -> bool:
        name, cache = self._player.cache_of(session)
        older = filled.get(name, 0)
        filled[name] = older + tokens
        return not cache or fits(tokens, older, cache)

    def _go_on(self, slot: int, needed: Next) -> Steps:
        episode, on_end = self._live[slot]
        if needed == "turn":
            self._ready[slot] = episode.turn()
            return []
        if needed == "step":
            return [(slot, self._envs.submit_step(slot, episode.action))]
        self._player.end_session(episode.session)
        if needed == "reset":
            self._to_reset.append(slot)
            return []
        if episode.program is not None:  # it still waits for an answer
            episode.program.stop_agent(episode.trajectory.end)
            if needed == "verdict":
                return [(slot, self._envs.submit_call(slot, episode.program.verdict))]
        del self._live[slot], self._slot_of[episode.session]
        on_end(episode.trajectory)
        return []


def fits(tokens: int, older: int, cache_tokens: int) -> bool:
    """Whether an episode plays, by its tokens, those of the older episodes that play, and the cache; the oldest does.

    If more play, each turn evicts what another needs next, and episodes are computed again at every turn: more than
    twenty times the work (benchmarks/results/cache-simulated.txt).

    >>> fits(500, older=0, cache_tokens=400), fits(500, older=400, cache_tokens=1000), fits(501, 400, 1000)
    (True, True, False)
    """
    return not older or older + tokens <= _FILLED * cache_tokens
