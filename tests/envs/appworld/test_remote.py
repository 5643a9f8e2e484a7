"""Worlds on another machine: the real ones through a server of their own, and the protocol with invented ones."""

import contextlib
import http.client
import json
import os
import pickle
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from http.server import BaseHTTPRequestHandler, HTTPServer

import gymnasium as gym
import psutil
import pytest

from eh_gym.errors import (
    ConfigError,
    WorkerCallError,
    WorkerDied,
    WorkerProtocolError,
    WorkerTimeout,
    WorkerVersionMismatch,
)
from envs.appworld import data, hosts, remote, server
from envs.appworld.hosts import Settings
from envs.appworld.leases import Leases
from envs.appworld.remote import RemoteHost
from envs.appworld.server import HEADER, MAX_BYTES, PROTOCOL, Server

TOKEN = "a-token-for-the-tests"
ABOUT = {
    "instruction": "Do it.",
    "supervisor": {"first_name": "A", "last_name": "B", "email": "a@b.org", "phone_number": "1"},
    "datetime": "2023-05-18T12:00:00",
    "apps": {"spotify": "music"},
}


class FakeWorld:
    def __init__(self, host, task_id):
        self.host, self.task_id = host, task_id
        self.about = ABOUT
        self.ran, self.closed, self.lost = [], False, False
        self.running, self.go_on = threading.Event(), threading.Event()

    @property
    def host_failed(self):
        return self.lost or not self.host.alive

    def execute(self, code):
        assert not self.closed
        self.ran.append(code)
        self.running.set()
        if code == "wait":
            assert self.go_on.wait(60)
        if code == "die":
            raise WorkerDied("the process has gone away")
        if code == "hang":
            raise WorkerTimeout("no answer after 1 s; the process was killed")
        if code == "bug":
            raise KeyError("a bug of the server")
        output = f"{self.task_id}: {code} is number {len(self.ran)}"
        return {"output": output, "malformed": False, "completed": code == "complete", "api_calls": 1}

    def verdict(self):
        if not self.host.alive:
            raise WorkerDied("the judge has gone away")
        if "too much" in self.ran:
            raise WorkerTimeout("a judge could not repeat the episode's API calls")
        return {"success": "right" in self.ran, "passed": 1, "total": 2, "failures": []}

    def close(self):
        assert not self.running.is_set() or self.ran[-1] != "wait" or self.go_on.is_set(), "closed while it runs"
        self.closed = True


class FakeHost:
    def __init__(self, settings):
        self.settings, self.alive, self.closed = settings, True, False
        self.worlds = []
        self.asked, self.ready = threading.Event(), threading.Event()
        self.ready.set()

    def task_ids(self, split):
        return ("a_1", "a_2", "a_3")

    def reference(self, split, task_id):
        return ["right", "complete"] if task_id == "a_1" else None

    def open(self, task_id):
        if not self.alive:
            raise WorkerDied("no zygote")
        self.asked.set()
        assert self.ready.wait(60)
        self.worlds.append(FakeWorld(self, task_id))
        return self.worlds[-1]

    def close(self):
        self.closed = True


class Served:
    """A server of invented worlds, in a thread."""

    def __init__(self, port=0, **options):
        self.hosts = []
        self.leases = Leases(self._make, ["train"], **options)
        self.server = Server(self.leases, TOKEN, port=port)
        self.url, self.port = self.server.url, self.server.server_address[1]
        self.connections = []
        accept = self.server.get_request
        self.server.get_request = lambda: self.connections.append(accept()) or self.connections[-1]
        self._thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()

    def _make(self, settings):
        self.hosts.append(FakeHost(settings))
        return self.hosts[-1]

    @property
    def worlds(self):
        return [world for host in self.hosts for world in host.worlds]

    def makes_nothing(self):
        """Whether no world is being made ahead, nor will be."""
        for client in self.leases._clients.values():
            with client.ahead._changed:
                if client.ahead._making or +client.ahead._wanted:
                    return False
        return True

    def stop(self):
        """As if its process had ended."""
        self.server.shutdown()
        self._thread.join(60)
        self.server.server_close()
        for connection, _ in self.connections:
            with contextlib.suppress(OSError):  # the client was first
                connection.shutdown(socket.SHUT_RDWR)
        self.leases.close()


@pytest.fixture
def serve():
    started = []

    def start(**options):
        started.append(Served(**options))
        return started[-1]

    yield start
    for each in started:
        each.stop()


@pytest.fixture
def connect():
    """Makes clients that do not wait long."""
    made = []

    def make(served, **settings):
        made.append(RemoteHost(served.url, TOKEN, Settings(**settings), patience_s=0.3))
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def clock(monkeypatch):
    """The leases' clock, which goes on when it is told to; ``looks`` counts how often they looked for silent ones."""

    class Clock:
        now, looks = time.monotonic(), 0

        def monotonic(self):
            self.looks += threading.current_thread().name == "appworld-leases"
            return self.now

        def go_on(self, seconds):
            self.now += seconds

    clock = Clock()
    monkeypatch.setattr("envs.appworld.leases.time", clock)
    return clock


@pytest.fixture
def unused():
    """A port where nobody listens, and that nobody else gets: bound without listening, it lets a server of ours in."""
    with socket.socket() as kept:
        kept.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        kept.bind(("127.0.0.1", 0))
        yield kept.getsockname()[1]


def until(condition):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def raw(served, method="execute", body=None, token=TOKEN, version=PROTOCOL, verb="POST", headers=()):
    """Sends a request as it is; returns the status and the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=60)
    data = body if isinstance(body, bytes) else json.dumps(body if body is not None else {}).encode()
    sent = {"Authorization": f"Bearer {token}", HEADER: version, "Content-Length": str(len(data)), **dict(headers)}
    with contextlib.closing(connection):
        connection.putrequest(verb, f"/{method}")
        for name, value in sent.items():
            if value is not None:
                connection.putheader(name, value)
        connection.endheaders(data)
        response = connection.getresponse()
        return response.status, json.loads(response.read())


SETTINGS = {"step_timeout_s": 30.0, "max_api_calls": 1000, "max_output_chars": 20_000, "memory_mb": 1024}


def leased(served, lease=None, client=None, task_id="a_1"):
    lease = lease or uuid.uuid4().hex
    body = {"client": client or uuid.uuid4().hex, "lease": lease, "task_id": task_id, "settings": SETTINGS}
    assert raw(served, "open", body) == (200, {"result": ABOUT})
    return lease


# The real worlds


@pytest.fixture(scope="module")
def real(appworld_python, tmp_path_factory):
    """A server as its command starts it: (url, token). When it is told to end, nothing of it is left."""
    token = tmp_path_factory.mktemp("server") / "token"
    token.write_text(TOKEN + "\n")
    command = f"{sys.executable} -m envs serve appworld --split mini --port 0 --token-file {token}".split()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        first = process.stdout.readline()
        yield re.search(r"http://127\.0\.0\.1:\d+", first)[0], TOKEN
        descendants = psutil.Process(process.pid).children(recursive=True)
        assert len(descendants) >= 3  # two zygotes and a world that nobody has closed
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0
        assert psutil.wait_procs(descendants, timeout=120)[1] == []
    finally:
        process.kill()
        process.stdout.close()


def play(env, task_id, messages):
    """An episode's answers; None among the messages stands for the expert's."""
    answers = [env.reset(seed=0, options={"task_id": task_id})]
    for message in messages:
        answers.append(env.step(message or env.unwrapped.expert()))
    return answers


@pytest.mark.campaign
def test_an_episode_is_the_same_as_on_this_machine(real):
    url, token = real
    there = gym.make("EH-AppWorld-v0", split="mini", url=url, token=token, disable_env_checker=True)
    here = gym.make("EH-AppWorld-v0", split="mini", disable_env_checker=True)
    assert there.unwrapped.task_ids == here.unwrapped.task_ids
    task_id = here.unwrapped.task_ids[-1]
    turns = len(data.reference("mini", task_id))
    for env in (there, here):
        env.unwrapped.prepare([task_id])  # both start at once
    messages = ["print(apis.supervisor.show_profile())", "1 +", "print('\\ud800 \U0001f600')"]
    assert play(there, task_id, messages) == play(here, task_id, messages)
    solved = play(there, task_id, [None] * turns)
    assert solved == play(here, task_id, [None] * turns)
    assert solved[-1][1:3] == (1.0, True)
    assert solved[-1][4]["success"] is True
    wrong = ["apis.supervisor.complete_task(answer='no answer at all')"]
    failed = play(there, task_id, wrong)
    assert failed == play(here, task_id, wrong)
    assert failed[-1][1:3] == (0.0, True)
    assert failed[-1][4]["verdict"]["failures"]
    there.reset(seed=1)  # left open: the server has to end it
    here.close()


@pytest.mark.campaign
def test_worlds_made_ahead_there_play_the_same(real):
    url, token = real
    env = gym.make("EH-AppWorld-v0", split="mini", url=url, token=token, disable_env_checker=True)
    task_id = env.unwrapped.task_ids[0]
    env.unwrapped.prepare([task_id])
    first = play(env, task_id, ["x = 1\nprint(x)"])
    assert play(env, task_id, ["x = 1\nprint(x)"]) == first
    assert play(env, task_id, ["print(x)"])[1][0] != first[1][0]
    env.close()


# The environment


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(
        "envs.appworld.env.remote_host", lambda url, token, s: RemoteHost(url, token, s, patience_s=0.2)
    )


def make(served, **options):
    return gym.make("EH-AppWorld-v0", url=served.url, token=TOKEN, disable_env_checker=True, **options)


def test_it_needs_no_backend_and_no_data_here(serve, monkeypatch, tmp_path):
    monkeypatch.setenv("EH_CACHE_DIR", str(tmp_path))
    env = make(serve())
    _, info = env.reset(options={"task_id": "a_1"})
    assert info["task_id"] == "a_1"
    assert info["instruction"] == "Do it."
    assert env.step(env.unwrapped.expert())[0] == "a_1: right\n is number 1"
    env.close()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ConfigError, match="expected a task of the split 'train'"):
        env.reset(options={"task_id": "b_1"})


def test_code_that_loses_its_world_ends_the_episode_and_the_next_begins(serve):
    served = serve()
    env = make(served)
    for code, name in (("die", "WorkerDied"), ("hang", "WorkerTimeout")):
        env.reset()
        text, reward, terminated, truncated, info = env.step(code)
        assert "Your code has destroyed its world" in text
        assert (reward, terminated, truncated) == (0.0, True, False)
        assert info["world_lost"].startswith(name)
        assert "environment_error" not in info
    assert all(world.closed for world in served.worlds)


def test_calls_that_no_judge_can_repeat_are_the_agents_failure(serve):
    env = make(serve())
    env.reset()
    env.step("too much")
    _, reward, terminated, truncated, info = env.step("complete")
    assert (reward, terminated, truncated) == (0.0, True, False)
    assert info["world_lost"].startswith("WorkerTimeout: a judge could not repeat")
    assert "environment_error" not in info


def truncates(env, match):
    _, reward, terminated, truncated, info = env.step("print(1)")
    assert (reward, terminated, truncated, info["success"]) == (0.0, False, True, False)
    assert re.search(match, info["environment_error"]), info
    assert "world_lost" not in info


def test_a_dead_server_truncates_and_a_new_one_serves_again(serve, impatient, unused, monkeypatch):
    class Clock:
        """Goes on in pauses alone: connections to nobody are refused at once."""

        now = 0.0

        def monotonic(self):
            return self.now

        def sleep(self, seconds):
            self.now += seconds

    served = serve(port=unused)
    env, other = make(served), make(served)
    env.reset()
    other.reset()
    served.stop()
    clock = Clock()
    with monkeypatch.context() as patch:
        patch.setattr(remote, "time", clock)
        truncates(env, "WorkerDied.*cannot be reached")
    assert 0.1 < clock.now <= 0.2  # as long as its patience
    again = serve(port=unused)
    truncates(other, "knows no such lease")
    other.reset()
    assert other.step("complete")[2]
    assert len(again.worlds) == 1


def test_a_failing_host_there_truncates(serve, impatient):
    served = serve()
    env = make(served)
    env.reset()
    served.hosts[-1].alive = False
    _, _, terminated, truncated, info = env.step("die")
    assert (terminated, truncated) == (False, True)
    assert "the process has gone away" in info["environment_error"]
    with pytest.raises(WorkerDied, match="no zygote"):
        env.reset()
    served.hosts[-1].alive = True
    env.reset()
    served.hosts[-1].alive = False
    assert "the judge has gone away" in env.step("complete")[4]["environment_error"]


def test_a_bug_of_the_server_truncates(serve, impatient):
    env = make(serve())
    env.reset()
    assert env.step("bug")[3]
    env.reset()
    assert not env.step("print(1)")[3]


def test_another_token_after_a_restart_truncates(serve, impatient):
    served = serve()
    env = make(served)
    env.reset()
    served.server.token = "another-token-for-the-tests"
    truncates(env, "wrong token")
    with pytest.raises(ConfigError, match="wrong token"):
        env.reset()


def test_the_token_comes_from_the_environment_and_is_not_pickled(serve, monkeypatch):
    served = serve()
    with pytest.raises(ConfigError, match="EH_APPWORLD_TOKEN"):
        gym.make("EH-AppWorld-v0", url=served.url)
    monkeypatch.setenv("EH_APPWORLD_TOKEN", TOKEN)
    env = gym.make("EH-AppWorld-v0", url=served.url, disable_env_checker=True)
    data = pickle.dumps(env)
    assert TOKEN.encode() not in data
    copy = pickle.loads(data)
    copy.reset(seed=3)
    assert not copy.step("print(1)")[3]
    assert TOKEN not in repr(env.spec)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"token": TOKEN}, "token was given without url"),
        ({"url": "http://127.0.0.1:1", "token": TOKEN, "confined": False}, "the server decides that"),
        ({"url": "127.0.0.1:8765", "token": TOKEN}, "url must be like http://127.0.0.1:8765, got '127.0.0.1:8765'"),
        ({"url": "http://127.0.0.1:x", "token": TOKEN}, "url must be like"),
        ({"url": "http://me:secret@127.0.0.1", "token": TOKEN}, "url must be like"),
        ({"url": "http://127.0.0.1:1", "token": "short"}, "16 to 200 characters"),
        ({"url": "http://127.0.0.1:1", "token": TOKEN + "\r\nX: y"}, "visible ASCII"),
    ],
)
def test_wrong_arguments_say_so(options, error):
    with pytest.raises(ConfigError, match=re.escape(error)):
        gym.make("EH-AppWorld-v0", **options)


# The client


def test_errors_say_what_went_wrong(serve, connect):
    host = connect(serve())
    with pytest.raises(ConfigError, match="the server has the split train, not 'dev'"):
        host.task_ids("dev")
    with pytest.raises(ConfigError, match="no task 'b_1'"):
        host.open("b_1")
    with pytest.raises(ConfigError, match="no task 'b_1'"):
        host.reference("train", "b_1")
    assert host.reference("train", "a_1") == ["right", "complete"]
    assert host.reference("train", "a_2") is None


def test_the_settings_go_with_the_lease_but_confinement_is_the_servers(serve, connect):
    served = serve()
    connect(served, step_timeout_s=2.5, max_api_calls=7, max_output_chars=300, memory_mb=99, confined=False).open("a_1")
    (world,) = served.worlds
    assert world.host.settings == Settings(2.5, max_api_calls=7, max_output_chars=300, memory_mb=99, confined=True)


def test_there_are_few_different_settings(serve, connect):
    served = serve()
    for number in range(1, 5):
        connect(served, max_api_calls=number).open("a_1")
    with pytest.raises(ConfigError, match="4 different settings"):
        connect(served, max_api_calls=5).open("a_1")
    connect(served, max_api_calls=4).open("a_1")


def test_a_thread_keeps_its_connection_and_renews_a_quiet_one(serve, connect, monkeypatch):
    served = serve()
    host = connect(served)
    world = host.open("a_1")
    for _ in range(5):
        world.execute("print(1)")
    assert len(served.connections) == 1
    thread = threading.Thread(target=world.execute, args=("print(2)",))
    thread.start()
    thread.join()
    assert len(served.connections) == 2
    monkeypatch.setattr(remote, "_REUSE_S", 0.0)
    world.execute("print(1)")
    assert len(served.connections) == 3


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_child_uses_no_connection_of_its_parent(serve, connect):
    served = serve()
    host = connect(served)
    host.task_ids("train")
    theirs = host._threads.connection.http.sock.fileno()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            told = host.task_ids("train") == ("a_1", "a_2", "a_3") and host._threads.connection.pid == os.getpid()
            os.write(write, b"1" if told else b"0")
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(read, 1) == b"1"
    assert host._threads.connection.http.sock.fileno() == theirs
    assert len(host.task_ids("train")) == 3


def test_a_broken_connection_is_tried_again_and_nothing_runs_twice(serve, connect, monkeypatch):
    served = serve()
    host = connect(served)
    send, broken = server._Handler._send, []

    def cut(self, status, answer):
        if len(broken) < 2:
            broken.append(self.path)
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
        else:
            send(self, status, answer)

    monkeypatch.setattr(server._Handler, "_send", cut)
    world = host.open("a_1")
    assert world.execute("right")["output"] == "a_1: right is number 1"
    broken.clear()
    assert world.execute("print(2)")["output"] == "a_1: print(2) is number 2"
    broken.clear()
    assert world.verdict()["success"] is True
    assert broken == ["/verdict"] * 2
    assert [world.ran for world in served.worlds] == [["right", "print(2)"]]


def test_no_answer_within_the_deadline(connect):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host = RemoteHost(f"http://127.0.0.1:{silent.getsockname()[1]}", TOKEN, Settings())
        with pytest.raises(WorkerTimeout, match=r"did not answer 'task_ids' within 0.3 s"):
            host.call("task_ids", {"split": "train"}, timeout_s=0.3)
        host._disconnect()


def test_nobody_there(unused):
    with pytest.raises(WorkerDied, match="is `python -m envs serve appworld` running there"):
        RemoteHost(f"http://127.0.0.1:{unused}", TOKEN, Settings(), patience_s=0.2).task_ids("train")


class Stranger(BaseHTTPRequestHandler):
    answers = (404, None, b"not here")

    def do_POST(self):
        status, version, text = self.answers
        self.send_response(status)
        if version:
            self.send_header(HEADER, version)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *arguments):
        pass


@pytest.mark.parametrize(
    ("answers", "error", "match"),
    [
        ((404, None, b"not here"), WorkerProtocolError, "no server of AppWorld's worlds"),
        ((200, None, b'{"result": ["a_1"]}'), WorkerProtocolError, "no server of AppWorld's worlds"),
        ((200, "7", b'{"result": ["a_1"]}'), WorkerVersionMismatch, "speaks protocol 7"),
        ((200, PROTOCOL, b"<html>"), WorkerProtocolError, "an answer that is none"),
        ((200, PROTOCOL, b"[" * 100_000), WorkerProtocolError, "an answer that is none"),
        ((500, PROTOCOL, b"{}"), WorkerProtocolError, "an answer that is none"),
        ((502, None, b"bad gateway"), WorkerDied, "a proxy says 502"),
    ],
)
def test_an_answer_that_is_no_servers(answers, error, match):
    stranger = HTTPServer(("127.0.0.1", 0), type("One", (Stranger,), {"answers": answers}))
    threading.Thread(target=stranger.serve_forever, kwargs={"poll_interval": 0.01}).start()
    try:
        host = RemoteHost(f"http://127.0.0.1:{stranger.server_port}", TOKEN, Settings(), patience_s=0.1)
        with pytest.raises(error, match=match):
            host.task_ids("train")
    finally:
        stranger.shutdown()
        stranger.server_close()


def test_too_long_a_request_is_not_sent(serve, connect):
    served = serve()
    world = connect(served).open("a_1")
    with pytest.raises(WorkerCallError, match="4,194,304 are allowed"):
        world.execute("x" * MAX_BYTES)
    assert served.worlds[0].ran == []


def test_a_client_that_ends_gives_back_what_it_has_and_nothing_else(serve, connect):
    served = serve()
    one, two = connect(served), connect(served)
    one.open("a_1")
    world = two.open("a_2")
    one.prepare(["a_3"])
    until(lambda: len(served.worlds) == 3)
    one.close()
    until(lambda: sorted(w.task_id for w in served.worlds if w.closed) == ["a_1", "a_3"])
    assert world.execute("print(1)")["output"] == "a_2: print(1) is number 1"


def test_the_hosts_of_a_process_end_with_it(serve, monkeypatch):
    monkeypatch.setattr(hosts, "_hosts", {})
    served = serve()
    host = remote.remote_host(served.url, TOKEN, Settings())
    assert remote.remote_host(served.url, TOKEN, Settings()) is host
    assert remote.remote_host(served.url, TOKEN, Settings(memory_mb=5)) is not host
    host.open("a_1")
    hosts.close_hosts()
    assert served.worlds[0].closed


# The server


@pytest.mark.parametrize(
    "method", ["task_ids", "reference", "open", "execute", "verdict", "end", "prepare", "leave", "x"]
)
@pytest.mark.parametrize("token", ["another-token-for-tests", "", TOKEN + "x", TOKEN[:-1], "\xe9" * 20])
def test_nothing_without_the_token(serve, method, token):
    status, answer = raw(serve(), method, {"split": "train"}, token=token)
    assert status == 401
    assert "wrong token" in answer["error"]["message"]
    assert TOKEN not in str(answer)


def test_no_authorization_at_all(serve):
    assert raw(serve(), "task_ids", {"split": "train"}, headers={"Authorization": None})[0] == 401
    assert raw(serve(), "task_ids", {"split": "train"}, headers={"Authorization": TOKEN})[0] == 401


def test_another_protocol_is_refused_on_both_sides(serve, connect, monkeypatch):
    served = serve()
    status, answer = raw(served, "task_ids", {"split": "train"}, version="1")
    assert (status, answer["error"]["kind"]) == (400, "WorkerVersionMismatch")
    assert raw(served, "task_ids", {"split": "train"}, version=None)[0] == 400
    monkeypatch.setattr(remote, "PROTOCOL", "1")
    with pytest.raises(WorkerVersionMismatch, match="speaks protocol 2, this client 1"):
        connect(served).task_ids("train")


ID = "0" * 32


@pytest.mark.parametrize(
    ("method", "body", "status"),
    [
        ("execute", b"", 400),
        ("execute", b"{", 400),
        ("execute", b"\xff\xfe", 400),
        ("execute", b"[]", 400),
        ("execute", b"[" * 100_000, 400),
        ("execute", {}, 400),
        ("execute", {"lease": 1, "number": 1, "code": ""}, 400),
        ("execute", {"lease": "../../etc", "number": 1, "code": ""}, 400),
        ("execute", {"lease": ID, "number": True, "code": ""}, 400),
        ("execute", {"lease": ID, "number": 0, "code": ""}, 400),
        ("execute", {"lease": ID, "number": 1, "code": ["x"]}, 400),
        ("execute", {"lease": ID, "number": 1, "code": "x"}, 404),
        ("verdict", {"lease": ID, "number": 1}, 404),
        ("open", {"client": ID, "lease": ID, "task_id": "a_1"}, 400),
        ("open", {"client": ID, "lease": ID, "task_id": "a_1", "settings": {}}, 400),
        ("open", {"client": ID, "lease": ID, "task_id": "a_1", "settings": SETTINGS | {"confined": False}}, 400),
        ("open", {"client": ID, "lease": ID, "task_id": "a_1", "settings": SETTINGS | {"memory_mb": 1.5}}, 400),
        ("open", {"client": ID, "lease": ID, "task_id": "a_1", "settings": SETTINGS | {"memory_mb": True}}, 400),
        ("open", {"client": ID, "lease": ID, "task_id": "a_1", "settings": SETTINGS | {"memory_mb": -1}}, 400),
        ("open", {"client": ID, "lease": ID, "task_id": "a_1", "settings": SETTINGS | {"memory_mb": 10**30}}, 400),
        (
            "open",
            {"client": ID, "lease": ID, "task_id": "a_1", "settings": SETTINGS | {"step_timeout_s": float("nan")}},
            400,
        ),
        ("open", {"client": ID, "lease": ID, "task_id": "../a_1", "settings": SETTINGS}, 400),
        ("prepare", {"client": ID, "task_ids": "a_1", "settings": SETTINGS}, 400),
        ("prepare", {"client": ID, "task_ids": ["b_1"], "settings": SETTINGS}, 400),
        ("task_ids", {"split": "mini"}, 400),
        ("nothing", {}, 404),
        ("../execute/..", {}, 404),
    ],
)
def test_a_malformed_request_says_what_is_wrong(serve, method, body, status):
    served = serve()
    got, answer = raw(served, method, body)
    assert got == status
    assert set(answer["error"]) == {"kind", "message"}
    assert served.worlds == []
    leased(served)  # it serves on


def test_the_head_of_a_request_is_checked(serve):
    served = serve()
    assert raw(served, headers={"Content-Length": None})[0] == 411
    assert raw(served, headers={"Content-Length": "-1"})[0] == 411
    assert raw(served, headers={"Transfer-Encoding": "chunked"})[0] == 411
    assert raw(served, headers={"Content-Length": str(MAX_BYTES + 1)})[0] == 413
    assert raw(served, headers={"Content-Length": "9" * 5000})[0] == 413
    for verb in ("GET", "PUT", "OPTIONS"):
        assert raw(served, verb=verb)[0] == 501
    with socket.create_connection(("127.0.0.1", served.port), 60) as connection:
        connection.sendall(b"\x16\x03\x01 nonsense\r\n\r\n")
        assert b'"error"' in connection.makefile("rb").read()
    leased(served)


def test_a_repeated_request_gets_the_first_answer(serve):
    served = serve()
    lease = leased(served)
    leased(served, lease)
    first = raw(served, "execute", {"lease": lease, "number": 1, "code": "print(1)"})
    assert first[1]["result"]["output"] == "a_1: print(1) is number 1"
    assert raw(served, "execute", {"lease": lease, "number": 1, "code": "print(1)"}) == first
    assert raw(served, "execute", {"lease": lease, "number": 2, "code": "die"})[1]["result"]["lost"] == "WorkerDied"
    assert raw(served, "execute", {"lease": lease, "number": 2, "code": "die"})[1]["result"]["lost"] == "WorkerDied"
    for number in (1, 4):
        status, answer = raw(served, "execute", {"lease": lease, "number": number, "code": "print(1)"})
        assert (status, "neither that nor the next" in answer["error"]["message"]) == (409, True)
    (world,) = served.worlds
    assert world.ran == ["print(1)", "die"]


def test_a_request_repeated_while_the_first_runs_waits_for_its_answer(serve):
    served = serve()
    lease = leased(served)
    answers = []
    body = {"lease": lease, "number": 1, "code": "wait"}
    threads = [threading.Thread(target=lambda: answers.append(raw(served, "execute", body))) for _ in range(5)]
    for thread in threads:
        thread.start()
    (world,) = served.worlds
    assert world.running.wait(60)
    assert raw(served, "execute", {"lease": lease, "number": 2, "code": "print(1)"})[0] == 409
    assert answers == []
    world.go_on.set()
    for thread in threads:
        thread.join(60)
    assert len(answers) == 5
    assert all(answer == answers[0] for answer in answers)
    assert world.ran == ["wait"]


def test_a_lease_that_ended_does_not_begin_again(serve):
    served = serve()
    lease = leased(served)
    for _ in range(2):
        assert raw(served, "end", {"lease": lease}) == (200, {"result": None})
    assert served.worlds[0].closed
    status, answer = raw(served, "execute", {"lease": lease, "number": 1, "code": "print(1)"})
    assert (status, "its client gave it back" in answer["error"]["message"]) == (410, True)
    body = {"client": ID, "lease": lease, "task_id": "a_1", "settings": SETTINGS}
    assert raw(served, "open", body)[0] == 410
    assert len(served.worlds) == 1


def test_a_lease_that_ends_while_it_runs_is_closed_after(serve):
    served = serve()
    lease = leased(served)
    thread = threading.Thread(target=raw, args=(served, "execute", {"lease": lease, "number": 1, "code": "wait"}))
    thread.start()
    (world,) = served.worlds
    assert world.running.wait(60)
    raw(served, "end", {"lease": lease})
    assert not world.closed
    world.go_on.set()
    thread.join(60)
    until(lambda: world.closed)


def test_what_nobody_uses_is_closed_and_a_later_call_hears_why(serve, connect, clock):
    served = serve(idle_timeout_s=0.5)
    host = connect(served)
    world, busy = host.open("a_1"), host.open("a_2")
    host.prepare(["a_3"])
    until(lambda: len(served.worlds) == 3)
    thread = threading.Thread(target=busy.execute, args=("wait",))
    thread.start()
    until(served.worlds[1].running.is_set)
    clock.go_on(0.6)
    until(lambda: served.worlds[0].closed and served.worlds[2].closed)
    assert not served.worlds[1].closed
    served.worlds[1].go_on.set()
    thread.join(60)
    busy.execute("print(1)")
    with pytest.raises(WorkerDied, match=r"nobody used it for 0.5 s"):
        world.execute("print(1)")
    assert world.host_failed
    host.prepare(["a_3"])
    until(lambda: len(served.worlds) == 4)


def test_what_is_used_now_and_then_is_kept(serve, connect, clock):
    served = serve(idle_timeout_s=0.1)
    playing, preparing = connect(served), connect(served)
    world = playing.open("a_1")
    playing.prepare(["a_2"])
    preparing.prepare(["a_3"])
    for _ in range(10):
        clock.go_on(0.06)
        seen = clock.looks
        until(lambda seen=seen: clock.looks >= seen + 6)  # twice at each client and lease, so once at all of them
        world.execute("print(1)")
        preparing.prepare(["a_3"])
    until(served.makes_nothing)
    assert sorted(world.task_id for world in served.worlds) == ["a_1", "a_2", "a_3"]
    assert not any(world.closed for world in served.worlds)


def test_a_connection_that_says_nothing_is_closed(serve, monkeypatch):
    assert remote._REUSE_S < server._Handler.timeout < 1000  # a client has left it by then
    monkeypatch.setattr(server._Handler, "timeout", 0.1)
    served = serve()
    for sent in (b"", b"POST /execute HTTP/1.1\r\n", b"POST /execute HTTP/1.1\r\nContent-Length: 9\r\n\r\n{"):
        with socket.create_connection(("127.0.0.1", served.port), 60) as connection:
            connection.sendall(sent)
            connection.makefile("rb").read()  # until the server hangs up


def test_a_world_that_comes_too_late_is_closed(serve, connect, monkeypatch):
    served = serve()
    host = connect(served)
    host.task_ids("train")
    served.hosts[0].ready.clear()
    for limit_s in (0.2, 2.0, 20.0):  # on a busy machine a request may not come to be answered in the shortest
        monkeypatch.setattr(remote, "_OPEN_TIMEOUT_S", limit_s)
        with pytest.raises(WorkerTimeout, match="did not answer 'open' within"):
            host.open("a_1")
        if served.hosts[0].asked.is_set():
            break
    assert served.worlds == []
    served.hosts[0].ready.set()
    until(lambda: served.worlds and served.worlds[0].closed)


def test_a_world_made_ahead_that_was_lost_meanwhile_is_replaced(serve, connect):
    served = serve()
    host = connect(served)
    host.prepare(["a_1"])
    until(lambda: len(served.worlds) == 1)
    served.worlds[0].lost = True
    host.open("a_1").execute("print(1)")
    assert served.worlds[0].closed
    assert [world.ran for world in served.worlds] == [[], ["print(1)"]]


def test_no_more_worlds_than_there_may_be(serve, connect):
    served = serve(max_worlds=2)
    host = connect(served)
    one, _ = host.open("a_1"), host.open("a_1")
    with pytest.raises(WorkerCallError, match="all 2 worlds of the server are in use; raise its --max-worlds"):
        host.open("a_1")
    one.close()
    host.open("a_1").execute("print(1)")
    assert sum(not world.closed for world in served.worlds) == 2


def test_a_world_made_ahead_makes_room_for_a_lease(serve, connect):
    served = serve(max_worlds=2)
    one, two = connect(served), connect(served)
    one.prepare(["a_1", "a_2", "a_3"])
    until(served.makes_nothing)  # for the third there is no room
    assert len(served.worlds) == 2
    two.open("a_3")
    assert [world.task_id for world in served.worlds] == ["a_1", "a_2", "a_3"]
    assert sum(not world.closed for world in served.worlds) == 2


def test_a_world_made_ahead_is_its_clients(serve, connect):
    served = serve()
    one, two = connect(served), connect(served)
    one.prepare(["a_1"])
    until(lambda: len(served.worlds) == 1)
    two.prepare([])
    two.open("a_1")
    assert len(served.worlds) == 2
    one.open("a_1").execute("mine")
    assert [world.ran for world in served.worlds] == [["mine"], []]


def test_a_world_that_could_not_be_made_takes_no_room(serve, connect):
    served = serve(max_worlds=1)
    host = connect(served)
    host.task_ids("train")
    served.hosts[0].alive = False
    for _ in range(3):
        with pytest.raises(WorkerDied, match="no zygote"):
            host.open("a_1")
    served.hosts[0].alive = True
    host.open("a_1")


def test_the_end_of_the_leases_ends_their_hosts(serve, connect):
    served = serve()
    host = connect(served)
    host.open("a_1")
    served.leases.close()
    assert [each.closed for each in served.hosts] == [True]
    with pytest.raises(WorkerCallError, match="the server is going down"):
        host.open("a_2")


@pytest.mark.parametrize("options", [{"max_worlds": 0}, {"idle_timeout_s": 0}, {"idle_timeout_s": float("nan")}])
def test_limits_that_are_none(options):
    with pytest.raises(ConfigError, match="must be >"):
        Leases(FakeHost, ["train"], **options)
