"""Training, resuming and evaluating agent programs, with the same commands and settings as environments."""

import functools
import json
import random
import re
import subprocess
import sys
import time
import urllib.error
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cabinet_agent
import gymnasium as gym
import pytest
from glossary import check_glossary
from quiet_run import kill_and_resume, metrics_of, rows_of_run

from eh_gym.errors import UserCodeError
from harness import evaluate_policy, train
from harness.agents.env import AgentEnv
from harness.grpo import main as grpo
from harness.records.run_folder import prepare
from harness.rollout.agent_conversation import AgentConversation
from harness.rollout.conversation import EnvironmentConversation
from harness.sampling.transformers import TransformersSampler
from harness.settings.section import changed

SUPPORT = Path(cabinet_agent.__file__).parent


@pytest.fixture(scope="module")
def model(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    trained.save(folder)
    return folder


@pytest.fixture(scope="module")
def tasks(tmp_path_factory):
    file = tmp_path_factory.mktemp("tasks") / "tasks.jsonl"
    train_tasks = [{"id": f"train-{i:06d}", "level": "even" if i % 2 == 0 else "odd"} for i in range(40)]
    held_out = [{"id": f"test-{i:06d}", "cabinets": "test", "split": "test", "level": "odd"} for i in range(8)]
    file.write_text("".join(json.dumps(task) + "\n" for task in [*train_tasks, *held_out]))
    return file


@pytest.fixture
def config(quick, model, tasks):
    return changed(
        quick,
        env="EH-Cabinet-v0",
        agent="cabinet_agent:play",
        tasks=str(tasks),
        model=str(model),
        **{"warm_start.episodes": 0},
    )


@pytest.fixture
def own(config):
    return changed(config, agent="", tasks="", env="EH-Cabinet-v0", updates=2, eval_tasks=0)


def test_an_agent_is_trained_as_the_environment_that_it_plays(config, tasks, tmp_path, monkeypatch):
    monkeypatch.setattr(AgentConversation, "request", EnvironmentConversation.request)  # with an environment's seeds
    rows = rows_of_run(config)
    ids = {
        split: [t["id"] for t in map(json.loads, tasks.open()) if t.get("split", "train") == split]
        for split in ("train", "test")
    }

    def cabinet(split="train"):
        env = gym.make("EH-Cabinet-v0", split=split)
        env.unwrapped.task_ids = ids[split]
        return env

    same = changed(config, agent="", tasks="", env="EH-Cabinet-v0", out=tmp_path / "cabinet")
    train(same, env=cabinet, show=False)
    of_cabinet = metrics_of(same)
    unknown = {"rollout/success_ceiling", "rollout/success_long", "rollout/steps_per_optimum", "rollout/malformed"}
    unknown |= {name for row in rows for name in row if name.startswith("rollout/agent")}
    assert len(rows) == config.updates
    for row, expected in zip(rows, of_cabinet, strict=True):
        assert {k: v for k, v in row.items() if k not in unknown} == {
            k: v for k, v in expected.items() if k not in unknown
        }
        check_glossary(row)
    assert any(row["rollout/truncated"] for row in rows)
    assert rows[-1]["horizon/k"] != rows[0]["horizon/k"]


def test_sessions_run_on_while_weights_change(config):
    rows = rows_of_run(changed(config, max_staleness=2, rollout="streaming", env_threads=8))
    assert [row["rollout/episodes"] for row in rows] == [16.0] * config.updates
    assert rows[-1]["rollout/policy_lag"] > 0
    assert all(row["rollout/environment_errors"] == row["rollout/agent_failures"] == 0 for row in rows)


@pytest.mark.campaign
def test_a_killed_run_goes_on_with_the_same_numbers(config, child_env, tmp_path, monkeypatch):
    whole = rows_of_run(config)
    killed = changed(config, out=tmp_path / "killed")
    path = f"{Path(cabinet_agent.__file__).parents[2]}:{SUPPORT}"
    kill_and_resume(killed, (2,), child_env | {"PYTHONPATH": path})
    assert metrics_of(killed) == whole


def test_a_run_whose_agents_hang_ends_soon_after_sigterm(config, child_env, tmp_path):
    hung = tmp_path / "hung"
    (tmp_path / "hanging.py").write_text(
        f"""import time, cabinet_agent, pathlib
def play(task, base_url):
    cabinet_agent.ask(base_url, [{{"role": "user", "content": "start c"}}])
    pathlib.Path({str(hung)!r}).touch()
    time.sleep(600)
"""
    )
    hangs = changed(config, agent="hanging:play", eval_tasks=0, out=tmp_path / "hangs", env="EH-Agent-v0")
    prepare(hangs)
    path = f"{SUPPORT.parents[1]}:{SUPPORT}:{tmp_path}"
    words = [sys.executable, "-m", "harness.grpo", "--resume", str(hangs.out)]
    with subprocess.Popen(words, env=child_env | {"PYTHONPATH": path}, stdout=subprocess.DEVNULL) as process:
        try:
            while not hung.exists():
                assert process.poll() is None
                time.sleep(0.1)
            time.sleep(0.5)
            process.terminate()
            assert process.wait(100) == 130  # 5 s at load 28; the agents have 300 s
        finally:
            process.kill()


def asks(task, base_url):
    cabinet_agent.ask(base_url, [{"role": "user", "content": "start c"}])


def has_a_typo(task, base_url):
    asks(task, base_url)
    answer = {}
    return answer["anwser"]


def never_asks(task, base_url):
    raise ValueError("never asked")


@pytest.mark.parametrize("updates", [1, 9])
@pytest.mark.parametrize(
    ("play", "said"),
    [
        ("has_a_typo", r"KeyError: 'anwser' \(.*test_training.py, line \d+, in has_a_typo\).*step 1; its trace is in"),
        ("asks", "expected a reward, .* got None"),
        ("never_asks", r"ended without a call of the model: ValueError: never asked \(.*in never_asks\)"),
    ],
)
def test_a_run_whose_agent_always_fails_ends_with_the_reason(config, play, said, updates, capsys):
    words = ["--agent", f"{__name__}:{play}", "--tasks", str(config.environment.tasks), "--model", config.model.model]
    words += ["--recipe", "smollm2", "--tasks-per-update", "2", "--group-size", "2", "--updates", str(updates)]
    words += ["--eval-tasks", "0", "--out", str(config.out), "--max-action-tokens", "8", "--threads", "1"]
    with pytest.raises(SystemExit) as end:
        grpo([*words, "--warm-start.episodes", "0"])
    assert end.value.code == 1
    printed = capsys.readouterr().out
    assert re.search(f"error: all 4 episodes .* 4 times: .*{said}.* --resume .*, from update 0", printed)
    assert "model:  " not in printed
    logs = sorted((config.out / "episodes").glob("update-*.jsonl"))
    assert len(logs) == min(updates, 2)
    lines = [json.loads(line) for log in logs for line in log.open()]
    assert all(line["fault"] for line in lines)
    assert all("Traceback" in line["trace"] for line in lines if "Error" in line["fault"])


def test_most_episodes_that_fail_are_a_note_under_their_update_and_under_an_evaluation(own, tasks, capsys):
    calls = 0

    def play(task, base_url):
        nonlocal calls
        calls += 1
        if calls == 9:
            never_asks(task, base_url)
        return float(asks(task, base_url) is not None) if calls % 3 == 0 else has_a_typo(task, base_url)

    result = train(own, env=functools.partial(AgentEnv, play, tasks))
    said = capsys.readouterr().out
    for update in range(2):
        assert re.search(rf"note: update {update}: \d+ of 16 episodes ended by a failure.*KeyError: 'anwser'", said)
        assert result.history[update]["rollout/agent_failures"] > 8
    assert result.history[0]["rollout/environment_retries"] == 1
    lines = [json.loads(line) for line in (result.folder / "episodes" / "update-000001.jsonl").open()]
    failed = {((line["failure"] or "")[:18], line["reward"], line["end"]) for line in lines}
    assert failed == {("KeyError: 'anwser'", 0.0, "terminated"), ("", 0.0, "terminated")}
    evaluate_policy(result.model, functools.partial(AgentEnv, play, tasks), rollouts=2, threads=1)
    assert re.search(r"note: \d+ of 16 episodes ended by a failure.*KeyError: 'anwser'", capsys.readouterr().out)
    with pytest.raises(UserCodeError, match=r"all 8 episodes .*KeyError: 'anwser'"):
        evaluate_policy(result.model, functools.partial(AgentEnv, has_a_typo, tasks), rollouts=1, threads=1, show=False)


def fails_on_odd_tasks(how, task, base_url):
    if task["level"] == "even":
        asks(task, base_url)
        return 1.0
    if how == "exits":
        raise SystemExit
    if how == "is refused":
        cabinet_agent.ask(base_url, [], n=2)
    raise AssertionError(asks(task, base_url))


@pytest.mark.parametrize("how", ["exits", "is refused", "fails later"])
def test_an_agent_that_ends_before_its_first_answer_has_failed(own, chat_server, capsys, how):
    tasks = [{"id": f"{i}", "level": "odd" if i % 2 else "even"} for i in range(4)]
    agent = functools.partial(AgentEnv, functools.partial(fails_on_odd_tasks, how), tasks)
    result = train(changed(own, tasks_per_update=4, group_size=2), env=agent)
    for row in result.history:
        counts = (row[f"rollout/{name}"] for name in ("episodes", "success", "agent_failures", "environment_errors"))
        assert tuple(counts) == (8, 0.5, 4, 0)
        assert row["horizon/k_mean"] == row["horizon/k"]
    lines = [json.loads(line) for line in (result.folder / "episodes" / "update-000001.jsonl").open()]
    assert sum("fault" in line and line["kinds"] == {} and line["reward"] == 0 for line in lines) == 4
    with chat_server.serve(lambda *_: "ok") as server:
        told = {"base_url": server.url, "model": "m", "split": "train", "threads": 1}
        played = evaluate_policy("openai", agent, rollouts=1, **told)
    assert (played.episodes, played.mean_at_k, played.agent_failures, played.environment_errors) == (4, 0.5, 2, 0)
    said = capsys.readouterr().out
    assert said.count("episodes ended by a failure of the agent") == 2  # a cause is told once in training
    assert "2 of 4 episodes ended by a failure of the agent" in played.faults in said


@pytest.mark.parametrize("k", [3, 30])
def test_a_hosted_model_plays_an_agent_as_the_environment_that_it_plays(chat_server, tasks, k):
    settings = {"rollouts": 1, "horizon": k, "model": "hosted", "show": False}
    results = []
    for own in ({"agent": "cabinet_agent:play", "tasks": tasks}, {"env": "EH-Cabinet-v0", "tasks": 8}):
        with chat_server.serve(chat_server.cabinet_agent) as server:
            results.append(evaluate_policy("openai", base_url=server.url, **settings, **own))
        assert len(server.requests) == round(8 * results[-1].length_mean)
    of_agent, of_cabinet = results
    assert of_agent.success_lengths == of_cabinet.success_lengths
    assert (of_agent.length_mean, of_agent.truncated) == (of_cabinet.length_mean, of_cabinet.truncated)
    assert (of_agent.truncated > 0) == (k == 3)


REFUSED = []


def votes(task, base_url):
    def vote(number):
        time.sleep(random.random() / 50)
        try:
            said = cabinet_agent.ask(base_url, [{"role": "user", "content": f"start {'abcdef'[number // 2]}"}])
        except urllib.error.HTTPError as error:
            REFUSED.append(json.load(error)["error"]["code"])
            return ""
        return str(said["choices"][0]["message"]["content"])

    vote(0)
    with ThreadPoolExecutor(12) as pool:
        return len("".join(pool.map(vote, range(12)))) % 2 == 0


@pytest.mark.parametrize("mode", ["lockstep", "streaming"])
def test_calls_at_once_are_sampled_together_and_draw_the_same_in_any_order(model, tasks, tmp_path, mode, monkeypatch):
    most, submit = [0], TransformersSampler.submit

    def counted(self, request):
        submit(self, request)
        most[0] = max(most[0], self.pending)

    monkeypatch.setattr(TransformersSampler, "submit", counted)
    settings = {"agent": f"{__name__}:votes", "tasks": tasks, "rollouts": 2, "max_action_tokens": 6}

    def said(out, **more):
        evaluate_policy(model, show=False, threads=1, rollout=mode, out=tmp_path / out, **settings, **more)
        [file] = (tmp_path / out / "episodes").glob("*.jsonl")
        lines = sorted(map(json.loads, file.open()), key=lambda line: line["seed"])
        assert all(line["error"] is None and not line.get("fault") for line in lines)
        return [sorted(turn["action"] for turn in line["turns"]) for line in lines]

    one = said("one", horizon=30)
    assert {len(turns) for turns in one} == {13}
    assert most[0] > 16, "calls wait for each other"
    assert one == said("two", horizon=30)
    REFUSED.clear()
    assert {len(turns) for turns in said("three", horizon=5)} == {5}
    assert "horizon_reached" in REFUSED
    # The others from a slot that has a new episode, or was closed.
    assert {*REFUSED} <= {"horizon_reached", "episode_over", "invalid_api_key"}


@pytest.mark.parametrize("keep", [False, True], ids=["zero", "keep"])
@pytest.mark.parametrize("player", ["lockstep", "streaming", "endpoint"])
def test_no_agent_earns_more_by_failing_or_by_being_stopped(player, keep, own, chat_server):
    begun = Counter()

    def play(task, base_url):
        begun[task["id"]] += 1
        kind = ["ends", "breaks", "says so", "breaks when stopped"][begun[task["id"]] % 4]
        for _ in range(1 if kind in ("ends", "breaks") else 99):
            try:
                cabinet_agent.ask(base_url, [{"role": "user", "content": f"start {kind}"}])
            except urllib.error.HTTPError:
                if kind == "says so":
                    break
                raise
        if kind == "breaks":
            raise ValueError("spilled the tea")
        return -3.0

    stopped = {("horizon", None, -3.0 if keep else 0.0)}
    stopped |= {("horizon", "HTTPError: HTTP Error 404: ", -3.0)} if keep else set()
    expected = stopped | {("terminated", None, -3.0), ("terminated", "ValueError: spilled the tea", -3.0)}
    agent, told = functools.partial(AgentEnv, play, [{"id": "one"}]), {"truncated_reward": "keep" if keep else "zero"}
    if player == "endpoint":
        with chat_server.serve(lambda request, _: "go") as server:
            how = {"base_url": server.url, "model": "m", "split": "train", "horizon": 3, "rollouts": 4}
            result = evaluate_policy("openai", agent, tasks=1, show=False, threads=1, **how, **told)
        assert result.reward_mean == (-3.0 if keep else -1.5)
        return
    once = {"updates": 1, "tasks_per_update": 1, "group_size": 4, "rollout": player, "k0": 3, "k_min": 3}
    result = train(changed(own, **once, **told), env=agent, show=False)
    lines = [json.loads(line) for line in (result.folder / "episodes" / "update-000000.jsonl").open()]
    assert {(line["end"], (line["failure"] or "")[:27] or None, line["reward"]) for line in lines} == expected
    assert [line["success"] for line in lines] == [False] * 4
    assert result.history[0]["rollout/reward_mean"] == (-3.0 if keep else -1.5)
