"""Calls requested ahead belong to their attempt, and are read once."""

from concurrent.futures import Future
from typing import Any

from eh_gym.errors import WorkerError
from harness.agents.protocol import ModelCall
from harness.rollout.conversation import NoRoom, UnreadableRequestError
from harness.rollout.episode import Episode
from harness.settings.rollout import Rollout
from harness.types.request import EpisodeRequest
from harness.types.trajectory import Turn

PRESENT, NEXT = ModelCall([{"role": "user", "content": "a"}]), ModelCall([{"role": "user", "content": "b"}])


class Talk:
    """A conversation and its agent program. The program makes two calls at once."""

    def __init__(self, readable: bool = True) -> None:
        self.readable, self.read = readable, 0

    def waiting(self) -> list[ModelCall]:
        return [NEXT]

    def prompt(self, call: ModelCall | None = None) -> str:
        self.read += call is NEXT
        if call is NEXT and not self.readable:
            raise UnreadableRequestError("no")
        return (call or PRESENT).messages[0]["content"]

    def request(self, session: Any, *_: Any) -> Any:
        return session

    def act(self, reply: str) -> tuple[Turn, str]:
        return Turn(reply, "", cut=False, malformed=False), reply

    def answered(self, info: Any) -> None: ...


def answer(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_exception(value) if isinstance(value, Exception) else future.set_result(value)
    return future


def begin(talk: Talk) -> Episode:
    episode = Episode(7, EpisodeRequest("x", 0, 0), Rollout(), lambda *_: talk)
    reset(episode, talk)
    return episode


def reset(episode: Episode, talk: Talk) -> None:
    info = {"task_id": "x", "system_prompt": "", "call": PRESENT, "agent_program": talk}
    assert episode.reset_answered(answer(("", info))) == "turn"


def test_a_call_of_a_failed_attempt_is_ended_and_its_name_never_used_again() -> None:
    talk = Talk()
    episode = begin(talk)
    first = episode.turns(room=9)
    assert first == [7, (7, 1)]
    episode.replies[7] = "go"
    assert episode.act() == "step"
    assert episode.step_answered(answer(WorkerError("killed"))) == "reset"
    assert set(first) == episode.sessions, "so that the player drops them"
    reset(episode, talk)
    again = episode.turns(room=9)
    assert again[0] == 7
    assert not {*again[1:]} & {*first}


def test_a_call_that_cannot_be_read_ahead_is_tried_once() -> None:
    talk = Talk(readable=False)
    episode = begin(talk)
    assert [episode.turns(room=9) for _ in range(3)] == [[7], [], []]
    assert talk.read == 1


def test_a_reply_ends_the_episode_if_there_is_no_room_for_it_or_the_environment_says_so() -> None:
    episode = begin(Talk())
    for reply, needed, end in (("go", "step", "terminated"), (NoRoom(), "over", "context")):
        episode.turns(room=0)
        assert episode.awaits_reply
        episode.replies[7] = reply
        assert (episode.act(), episode.awaits_reply, episode.trajectory.end) == (needed, False, end)
        if needed == "step":
            assert episode.step_answered(answer(("", 0.0, False, False, {}))) == "turn"
    assert begin(Talk()).turns(room=0) == [7]
    assert episode.step_answered(answer(("", 1.0, True, False, {"success": True}))) == "over"
