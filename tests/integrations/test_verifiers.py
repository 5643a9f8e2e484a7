"""K in verifiers' own environments and worker processes: outcome by outcome what `ElasticHorizon` alone says."""

import asyncio
import json
import multiprocessing
import sys
from functools import partial
from types import SimpleNamespace

import pytest
from alone import QUICK, cabinet_lengths, update_alone
from endings import ENDS, K
from openenv_server import served_here

from eh_gym import ElasticHorizon

vf = pytest.importorskip("verifiers.v1")

from verifiers.v1.serve import EnvClient  # noqa: E402
from verifiers.v1.serve.pool import env_config_data, serve_env  # noqa: E402
from verifiers.v1.utils.loaders import load_environment, resolve_env_config  # noqa: E402

MODULE = """
import verifiers.v1 as vf

from eh_gym import ElasticHorizon, TaskHorizon
from eh_gym.integrations.verifiers import elastic
from eh_gym.integrations.verifiers_gym import ChatHarness, GymEnv, GymTaskset


class Count(vf.Task):
    @vf.reward
    async def counted(self, trace):
        return 1.0


class Counting(vf.Taskset[Count, vf.TasksetConfig]):
    def load(self):
        return [Count(vf.TaskData(prompt="start f"), self.config.task)]


horizon = dict(folder={folder!r}, update_every={every})
Env = elastic({env_class}, {controller}, success={rule}, zero_reward_on_truncation={zero}, **horizon)
__all__ = ["ChatHarness", "Env", {taskset!r}]
"""


def nine_alone():
    """A controller alone that has heard nine episodes, and of each: K, turns, reward, whether K stopped it."""
    alone, found = ElasticHorizon(**QUICK), []
    for first in (0, 3, 6):
        outcomes = update_alone(alone, cabinet_lengths(range(first, first + 3)))
        found += [(o.horizon, o.length, float(o.success), float(o.truncated)) for o in outcomes]
    assert len({k for k, *_ in found}) > 2
    return alone, found


@pytest.fixture
def plug_in(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=":")

    def write(every, k0=10, env_class="GymEnv", taskset="GymTaskset", controller=None, zero=True, **told):
        name = f"plugged_{taskset.lower()}"
        sys.modules.pop(name, None)
        quick = QUICK | {"k0": k0}
        rule = "None" if zero else "lambda trace: trace.reward > 0"
        made = controller or f"ElasticHorizon(**{quick})"
        names = {"controller": made, "env_class": env_class, "taskset": taskset, "zero": zero, "rule": rule}
        text = MODULE.format(folder=str(tmp_path / "k"), every=every, **names)
        (tmp_path / f"{name}.py").write_text(text)
        return resolve_env_config({"taskset": {"id": name, **told}, "agent": {"runtime": {"type": "subprocess"}}})

    return write


def play(config, url, tasks):
    """Plays the tasks one after the other in this process."""

    async def run():
        env = load_environment(config)
        ctx = SimpleNamespace(model="m", client=vf.EvalClientConfig(base_url=url), sampling=vf.SamplingConfig())
        async with env.serving():
            return [await env.run_episode(task, ctx) for task in list(env.taskset.take(tasks))]

    return asyncio.run(run())


def test_k_moves_as_the_controller_alone_does_and_a_later_run_goes_on(chat_server, plug_in, tmp_path):
    config = plug_in(every=3, gym_id="EH-Cabinet-v0")
    with chat_server.serve(chat_server.cabinet_agent) as server:
        episodes = play(config, server.url, 9)
    alone, expected = nine_alone()
    traces = [episode.traces[0] for episode in episodes]
    assert all(episode.ok for episode in episodes), [episode.errors for episode in episodes]
    assert [(t.metrics["horizon_k"], t.num_turns, t.reward, t.metrics["truncated"]) for t in traces] == expected
    assert {t.stop_condition for t in traces} == {"max_turns", "user_closed"}
    assert json.loads((tmp_path / "k" / "state.json").read_text()) == json.loads(json.dumps(alone.state_dict()))
    assert len((tmp_path / "k" / "horizon.jsonl").read_text().splitlines()) == 3

    with chat_server.serve(chat_server.cabinet_agent) as server:
        [again] = play(config, server.url, 1)
    assert again.traces[0].metrics["horizon_k"] == alone.horizon


@pytest.mark.parametrize("zero", [True, False], ids=["zero", "keep"])
def test_every_end_earns_what_the_table_says(chat_server, plug_in, zero, monkeypatch):
    heard = []
    monkeypatch.setattr("eh_gym.integrations.folder.FolderHorizon.record", lambda self, outcome: heard.append(outcome))
    config = plug_in(
        every=99, controller=f"ElasticHorizon(k0={K}, k_min={K})", zero=zero, gym_id="Endings-v0", every_task=True
    )
    with chat_server.serve(lambda request, _: "go") as server:
        traces = [episode.traces[0] for episode in play(config, server.url, len(ENDS))]
    for (name, end), trace, outcome in zip(ENDS.items(), traces, heard, strict=True):
        assert trace.reward == pytest.approx(end.zero if zero else end.keep), name
        assert trace.metrics["truncated"] == end.stopped, name
        assert (outcome.success, outcome.truncated) == (end.success if zero else end.paid, end.stopped), name


def test_each_task_has_its_own_k(chat_server, plug_in):
    names = ["dev-000000", "dev-000001", "dev-000002"]
    controller = "TaskHorizon(k0=40, k_max=40, min_episodes=1, delta=1)"
    config = plug_in(every=3, controller=controller, gym_id="EH-Cabinet-v0", task_ids=names * 2)
    with chat_server.serve(chat_server.cabinet_agent) as server:
        traces = [episode.traces[0] for episode in play(config, server.url, 6)]
    turns = [t.num_turns for t in traces]
    assert len(set(turns[:3])) > 1
    assert [t.metrics["horizon_k"] for t in traces] == [40] * 3 + [max(5, n + 1) for n in turns[:3]]


def test_an_environment_of_theirs_is_stopped_and_earns_nothing(chat_server, plug_in):
    config = plug_in(every=1, k0=5, env_class="vf.SingleAgentEnv", taskset="Counting")
    import plugged_counting

    class Endless(plugged_counting.ChatHarness):
        async def launch(self, ctx, trace, runtime, endpoint, secret, mcp_urls, data):
            for _ in range(self.turns):
                done = await super().launch(ctx, trace, runtime, endpoint, secret, mcp_urls, self.opened(data))
            return done

        def opened(self, data):
            return data.model_copy(update={"prompt": [vf.UserMessage(content=data.prompt)]})

    plugged_counting.ChatHarness = Endless
    for turns, outcome in ((7, (5, 0.0, 1.0)), (5, (5, 1.0, 0.0)), (2, (2, 1.0, 0.0))):
        Endless.turns = turns
        with chat_server.serve(lambda request, n: "on") as server:
            [episode] = play(config, server.url, 1)
        [trace] = episode.traces
        assert (trace.num_turns, trace.reward, trace.metrics["truncated"]) == outcome, trace.errors


def test_worker_processes_share_k(chat_server, plug_in, tmp_path):
    config = plug_in(every=1, k0=40, gym_id="EH-Cabinet-v0")
    tasks = [task.data.model_dump(mode="json") for task in load_environment(config).taskset.take(8)]
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    told = {"max_workers": 2, "elastic": False, "address": "tcp://127.0.0.1:0", "address_queue": queue}
    parent, child = context.Pipe()
    pool = context.Process(
        target=serve_env, kwargs={**told, "death_pipe": child, "config_data": env_config_data(config)}
    )
    pool.start()

    async def run(url):
        client = EnvClient(queue.get(timeout=120))
        try:
            await client.wait_for_server_startup(interval=0.1)
            episode = (vf.EvalClientConfig(base_url=url), "m", vf.SamplingConfig())
            first = await asyncio.gather(*(client.run(*episode, data) for data in tasks))
            return first, await asyncio.gather(*(client.run(*episode, data) for data in tasks[:2]))
        finally:
            await client.close()

    try:
        with chat_server.serve(chat_server.cabinet_agent) as server:
            first, later = asyncio.run(run(server.url))
    finally:
        parent.close()
        pool.join(60)
    assert not pool.is_alive()
    traces = [episode.traces[0] for episode in first]
    # On a slow machine, K has fallen when the last ones start.
    needs = zip(cabinet_lengths(range(8)), traces, strict=True)
    assert [t.num_turns for t in traces] == [min(n, t.metrics["horizon_k"]) for n, t in needs]
    log = [json.loads(line) for line in (tmp_path / "k" / "horizon.jsonl").read_text().splitlines()]
    assert sum(row["episodes"] for row in log) in range(8, 11)  # those of both workers
    k = {t.metrics["horizon_k"] for t in (episode.traces[0] for episode in later)}
    assert all(value < 40 for value in k)


OPENENV = """
from verifiers.v1.tasksets.openenv import OpenEnvEnv, OpenEnvTaskset

from eh_gym import ElasticHorizon
from eh_gym.integrations.verifiers import elastic
from eh_gym.integrations.verifiers_gym import ChatHarness

Env = elastic(OpenEnvEnv, ElasticHorizon(**{quick}), folder={folder!r}, update_every=3, seat="player")
__all__ = ["ChatHarness", "Env", "OpenEnvTaskset"]
"""


def reads_openenv(cabinet_agent, request, number):
    """The cabinet's agent; verifiers shows it each observation with the schema of an action, as JSON."""
    messages = []
    for message in request["messages"]:
        content = message["content"]
        if message["role"] == "user":
            content = json.loads(content)["observation"]["text"]
        messages.append({**message, "content": content})
    return cabinet_agent({**request, "messages": messages}, number)


def test_their_openenv_taskset_plays_our_server_under_k(chat_server, tmp_path, monkeypatch):
    pytest.importorskip("openenv")
    (tmp_path / "plugged_openenv.py").write_text(OPENENV.format(folder=str(tmp_path / "k"), quick=QUICK))
    monkeypatch.syspath_prepend(tmp_path)
    with (
        served_here("EH-Cabinet-v0") as there,
        chat_server.serve(partial(reads_openenv, chat_server.cabinet_agent)) as endpoint,
    ):
        told = {
            "id": "plugged_openenv",
            "base_url": there["url"].replace("//", f"//any:{there['token']}@"),
            "resets": [{"seed": seed} for seed in range(9)],
        }
        config = resolve_env_config({"taskset": told, "player": {"runtime": {"type": "subprocess"}}})
        episodes = play(config, endpoint.url, 9)
    _, expected = nine_alone()
    traces = [episode.traces[0] for episode in episodes]
    assert all(episode.ok for episode in episodes), [episode.errors for episode in episodes]
    assert [(t.metrics["horizon_k"], t.num_turns, t.reward) for t in traces] == [row[:3] for row in expected]
