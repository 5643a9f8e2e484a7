"""Rollouts: many episodes at once, over the slots of a vector environment and one player.

In `streaming` every slot goes on by itself: the player always holds the next turn of every episode whose environment
has answered. In `lockstep` all live episodes take a turn together, in the order of the slots.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

from eh_gym.vector import ThreadVectorEnv
from harness.rollout.agent_conversation import AgentConversation
from harness.rollout.ahead import CallsAhead
from harness.rollout.conversation import Converse, EnvironmentConversation, Info, ModelConversation
from harness.rollout.slots import OnEnd, Slots, Steps
from harness.settings.rollout import Rollout
from harness.types.request import EpisodeRequest
from harness.types.sampler import Player, Sampler, sample_all
from harness.types.trajectory import Trajectory

if TYPE_CHECKING:  # an endpoint is played with without torch
    from harness.chat.chat import ChatFormat

Answers = SimpleQueue[Callable[[], None]]
"""A queue of calls, each of which records an answer. The loop makes them before its next step."""


def play(
    envs: ThreadVectorEnv,
    player: Player,
    converse: Converse,
    requests: Sequence[EpisodeRequest],
    settings: Rollout,
    on_end: OnEnd = lambda _: None,
    on_turn: OnEnd = lambda _: None,
) -> list[Trajectory]:
    """Plays every request with whoever replies, and returns the trajectories in the same order."""
    played: dict[int, Trajectory] = {}

    def keep(index: int, trajectory: Trajectory) -> None:
        played[index] = trajectory
        on_end(trajectory)

    ahead = CallsAhead(player, max(envs.num_envs, settings.slots))  # there are fewer if fewer episodes are played
    slots = Slots(envs, ahead, converse, on_turn)
    slots.add(requests, settings, keep)
    (play_streaming if settings.rollout == "streaming" else _play_in_lockstep)(slots, ahead)
    return [played[index] for index in range(len(requests))]


def converse_with(sampler: Sampler, chat: ChatFormat) -> Converse:
    def converse(trajectory: Trajectory, info: Info, settings: Rollout) -> ModelConversation:
        kind = AgentConversation if info.get("call") else EnvironmentConversation
        return kind(chat, sampler.max_context, trajectory, info, settings)

    return converse


def rollout(
    envs: ThreadVectorEnv,
    sampler: Sampler,
    chat: ChatFormat,
    requests: Sequence[EpisodeRequest],
    settings: Rollout,
    **callbacks: OnEnd,
) -> list[Trajectory]:
    """Plays every request with a model. `sampler` samples the turns; the other arguments are those of `play`.

    Every reset and every turn draws from its own seed, so the trajectories are a function of the requests. In lockstep
    mode this holds to the last bit. In streaming mode the timing decides which turns share a batch of the sampler. This
    may change the last digits of log-probabilities, and rarely a token.
    """
    return play(envs, sampler, converse_with(sampler, chat), requests, settings, **callbacks)


def _play_in_lockstep(slots: Slots, player: Player) -> None:
    """Everything happens in the order of the slots, so the batches of the sampler are the same in every run."""
    while slots.unfinished:
        steps = [step for slot, reset in slots.start_resets() for step in slots.reset_answered(slot, reset)]
        turns = slots.turns()
        requests = [turns[slot] for slot in sorted(turns)]
        replies = sample_all(player, requests)
        steps += [step for r, reply in zip(requests, replies, strict=True) for step in slots.act(r.session, reply)]
        for slot, answer in steps:
            steps += slots.step_answered(slot, answer)  # perhaps with the verdict of a stopped agent to come


def play_streaming(
    slots: Slots, player: Player, answers: Answers | None = None, *, goes_on: Callable[[], bool] = lambda: False
) -> None:
    """Plays every episode to its end; no episode waits for another one's environment.

    Only the loop's thread uses the player and the slots. It waits for an answer only if the player has no request.

    `answers` is the queue of the environments' answers, into which the caller may put calls of its own. The loop
    outlives the last episode while it `goes_on`, and waits for calls that may add some.
    """
    queue: Answers = SimpleQueue() if answers is None else answers

    def expect(record: Callable[[int, Future[Any]], Steps], slot: int, answer: Future[Any]) -> None:
        # If this thread steps the environments, the answer is queued at once.
        answer.add_done_callback(lambda done: queue.put(lambda: follow(record(slot, done))))

    def follow(steps: Steps) -> None:
        for slot, answer in steps:
            expect(slots.step_answered, slot, answer)

    while slots.unfinished or goes_on():
        for slot, reset in slots.start_resets():
            expect(slots.reset_answered, slot, reset)
        for turn in slots.turns().values():
            player.submit(turn)
        answered = False
        for record in _arrived(queue, wait=not player.pending):
            answered = True
            record()
        if answered:  # new episodes in free slots should join the sampler's next batch
            continue
        for request, reply in player.step():
            follow(slots.act(request.session, reply))


def _arrived(queue: Answers, *, wait: bool) -> Iterator[Callable[[], None]]:
    """With `wait`, waits for the first one."""
    if wait:
        yield queue.get()
    with contextlib.suppress(Empty):
        while True:
            yield queue.get_nowait()


class Played(NamedTuple):
    """A batch's episodes, in the order of the requests, and the seconds from its beginning to its end."""

    trajectories: list[Trajectory]
    seconds: float


@dataclass
class InTurn:
    """Plays each batch to its end, in the caller's thread."""

    envs: ThreadVectorEnv
    sampler: Sampler
    chat: ChatFormat

    def begin(self, episodes: Sequence[EpisodeRequest], settings: Rollout, on_end: OnEnd) -> Future[Played]:
        start = time.perf_counter()
        trajectories = rollout(self.envs, self.sampler, self.chat, episodes, settings, on_end=on_end)
        played: Future[Played] = Future()
        played.set_result(Played(trajectories, time.perf_counter() - start))
        return played

    def paused(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def close(self) -> None:
        self.envs.close()
