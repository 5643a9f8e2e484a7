"""A sampler, a chat format and an environment that are functions of what they are asked, with any timing one likes."""

import hashlib
import random
import threading
import time
from types import SimpleNamespace

import gymnasium as gym
import pytest

from eh_gym import ThreadVectorEnv
from eh_gym.errors import WorkerDied
from eh_gym.spaces import UnicodeText
from harness.chat.chat import Reply
from harness.types.request import EpisodeRequest
from harness.types.sampler import Sample


def number(*about):
    return int.from_bytes(hashlib.blake2b(repr(about).encode(), digest_size=6).digest(), "little")


class FakeChat:
    stop_ids = frozenset({0})
    strips = False

    def prompt_ids(self, system_prompt, observation, tools=()):
        return list((system_prompt + observation).encode())

    def observation_ids(self, observation, *, stopped):
        return ([] if stopped else [0]) + list(observation.encode())

    def read(self, ids, tools=()):
        return Reply(" ".join(map(str, ids)))


class FakeSampler:
    """What it writes is a function of the request; a turn of n tokens takes n steps. Checks the protocol's rules."""

    def __init__(self, max_context=100_000):
        self.max_context = max_context
        self.running = {}
        self.sessions = {}  # the last prompt of each
        self.version = 0
        self.thread = None
        self.before_step = lambda: None

    @property
    def pending(self):
        return len(self.running)

    def submit(self, request):
        assert request.session not in self.running, "two requests of one session"
        assert len(request.prompt_ids) + request.max_tokens <= self.max_context
        assert request.max_tokens >= 1
        last = self.sessions.get(request.session, [])
        assert list(request.prompt_ids[: len(last)]) == last, "a session's requests extend one another"
        self.sessions[request.session] = list(request.prompt_ids)
        draw = random.Random(number(request.seed, list(request.prompt_ids)))
        length = draw.randint(1, 5)
        ids = [draw.randint(1, 255) for _ in range(length - 1)] + [0]
        reason = "stop" if length <= request.max_tokens else "length"
        ids = ids[: request.max_tokens]
        sample = Sample(ids, [-draw.random() for _ in ids], reason, self.version)
        self.running[request.session] = (request, sample, len(ids))

    def step(self):
        assert self.thread in (None, threading.current_thread()), "driven from two threads"
        self.thread = threading.current_thread()
        self.before_step()
        ready = []
        for session, (request, sample, left) in list(self.running.items()):
            self.running[session] = (request, sample, left - 1)
            if left == 1:
                del self.running[session]
                ready.append((request, sample))
        return ready

    def end_session(self, session):
        self.running.pop(session, None)
        self.sessions.pop(session, None)

    def weights_changed(self):
        self.version += 1
        return self.version


class AnsweringPlayer:
    max_context = 200_000

    def __init__(self, answer):
        self.answer = answer
        self.requests = []
        self.running = {}

    @property
    def pending(self):
        return len(self.running)

    def submit(self, request):
        self.requests.append(request)
        self.running[request.session] = request

    def step(self):
        running, self.running = self.running, {}
        return [(request, self.answer(request)) for request in running.values()]

    def end_session(self, session):
        self.running.pop(session, None)


class FakeEnv(gym.Env[str, str]):
    """Episodes of 1 to 9 steps whose answers are functions of the task, the seed and the actions.

    `delay(task_id, step)`: seconds that an answer takes. `fails(task_id, attempt)`: None, or (where, how): in which
    step (0 is the reset) the attempt fails and whether it tells so in its info or raises.
    """

    observation_space = UnicodeText(100_000)
    action_space = UnicodeText(100_000)

    def __init__(self, delay=lambda task, step: 0.0, fails=lambda task, attempt: None, attempts=None):
        self._delay, self._fails = delay, fails
        self._attempts = attempts if attempts is not None else {}

    def reset(self, *, seed=None, options=None):
        assert options is not None
        self._task, self._said = options["task_id"], [str(seed)]
        key = (self._task, seed or 0)
        attempt = self._attempts[key] = self._attempts.get(key, -1) + 1  # a task's attempts come one after the other
        self._failure = self._fails(self._task, attempt)
        self._length = 1 + number(self._task, seed) % 9
        self._wait(0)
        info = {"task_id": self._task, "system_prompt": "rules. ", "optimal_steps": self._length}
        return f"start {self._task} {seed}", info

    def step(self, action):
        self._said.append(action)
        steps = len(self._said) - 1
        told = self._wait(steps)
        if told is not None:
            return "failed", 1.0, False, True, {"environment_error": told, "success": False}
        digest = number(self._said)
        done = steps == self._length
        info = {"success": done and digest % 2 == 0, "malformed": digest % 3 == 0}
        return f"answer {digest}", float(info["success"]), done, False, info

    def _wait(self, step):
        time.sleep(self._delay(self._task, step))
        if self._failure is None or self._failure[0] != step:
            return None
        if self._failure[1] == "raise" or step == 0:
            raise WorkerDied("killed")
        return "WorkerDied: killed"


def requests(n, group=2):
    return [EpisodeRequest(f"task-{i // group}", i // group, seed=1000 + i) for i in range(n)]


def make_envs(slots, threads, **arguments):
    arguments.setdefault("attempts", {})
    return ThreadVectorEnv([lambda: FakeEnv(**arguments)] * slots, max_workers=threads)


@pytest.fixture
def fake():
    """The fakes: ``Sampler``, ``Player``, ``Chat``, ``envs(slots, threads, …)``, ``requests(n)``."""
    return SimpleNamespace(
        Sampler=FakeSampler, Player=AnsweringPlayer, Chat=FakeChat, envs=make_envs, requests=requests
    )
