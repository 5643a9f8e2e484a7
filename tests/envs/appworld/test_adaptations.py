"""The adaptations and the judge change nothing: against AppWorld's engine, used as its README says.

Compared are what each step prints, the verdict with every failed requirement, and every change to every database, over
all solutions of all mini tasks, right and wrong, and over random API calls.
"""

import json
import os
import random
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from envs.appworld import data
from envs.appworld.backend import adaptations

PLAY = Path(__file__).with_name("play.py")
NO_NEED = ("api_docs", "supervisor")  # apps without a login
LOG_IN = """\
passwords = {p["account_name"]: p["password"] for p in apis.supervisor.show_account_passwords()}
profile = apis.supervisor.show_profile()
token = {}
for app, password in passwords.items():
    user = profile["phone_number" if app == "phone" else "email"]
    try:
        token[app] = apis[app].login(username=user, password=password)["access_token"]
    except Exception as error:
        print(app, error)
"""
CALL = """\
for app, api, arguments in {calls!r}:
    if "access_token" in arguments:
        arguments["access_token"] = token.get(app, "")
    try:
        print(apis[app][api](**arguments))
    except Exception as error:
        print(type(error).__name__, error)
"""


def random_value(parameter, rng):
    """A value of a parameter's type; often one that exists in a small world, sometimes a wrong one."""
    kind = parameter["type"]
    if kind.startswith("list"):
        return [random_value({"type": kind[5:-1], "name": parameter["name"]}, rng) for _ in range(rng.randrange(3))]
    if rng.random() < 0.03:
        return rng.choice([None, "", -1, "é\ud83d", [], {}, 10**20])
    if kind == "integer":
        return rng.choice([0, 1, 2, 3, 5, rng.randrange(30), rng.randrange(1000)])
    if kind == "boolean":
        return rng.random() < 0.5
    if kind.startswith("number"):
        return round(rng.uniform(0, 50), 2)
    if "email" in parameter["name"]:
        return rng.choice(["tobias.lindqvist@mailbox.example", "callum.oyelaran@mailbox.example", "x@y.z"])
    if "date" in parameter["name"] or "time" in parameter["name"]:
        return rng.choice(["2024-03-14", "2024-03-01", "2024-03-20T10:00:00", "10:30", "yesterday"])
    if "path" in parameter["name"]:
        return rng.choice(["/home/", "~/", "~/documents/", "~/downloads/new.txt"])
    return rng.choice(["a", "music", "notes", "Weekly plan", "medium", "red", "5", "folk", "-created_at"])


def random_calls(documents, rng, count):
    """Calls as (app, API, arguments), of any API but the one that ends the task."""
    calls = []
    while len(calls) < count:
        document = rng.choice(documents)
        name = document["app_name"], document["api_name"]
        if name[1] == "complete_task":
            continue
        chosen = [
            p for p in document["parameters"] if p["required"] or p["name"] == "access_token" or rng.random() < 0.3
        ]
        calls.append((*name, {p["name"]: random_value(p, rng) for p in chosen}))
    return calls


@pytest.fixture(scope="module")
def roots(appworld_python):
    return data.roots("mini")


@pytest.fixture(scope="module")
def requests(roots):
    """Every solution of every task, nothing at all, and a program of random calls for each task."""
    documents = [
        document
        for path in sorted((roots.agent / "data" / "api_docs" / "standard").glob("*.json"))
        for document in json.loads(path.read_text()).values()
    ]
    found = []
    for number, task_id in enumerate(data.task_ids("mini")):
        truth = roots.judge / "data" / "tasks" / task_id / "ground_truth"
        solutions = json.loads((truth / "wrong.json").read_text())
        solutions["reference"] = json.loads((truth / "steps.json").read_text())
        solutions["empty"] = ["apis.supervisor.complete_task()"]
        rng = random.Random(number)
        calls = CALL.format(calls=random_calls(documents, rng, 40))
        solutions["random"] = [LOG_IN, calls, "apis.supervisor.complete_task(answer=1)"]
        found += [{"task_id": task_id, "name": name, "steps": steps} for name, steps in solutions.items()]
    return found


@pytest.fixture(scope="module")
def play(appworld_python, tmp_path_factory):
    """Plays a job (see play.py) in ``shares`` processes."""
    home = str(tmp_path_factory.mktemp("home"))

    def run(job):
        environment = {"PATH": os.environ["PATH"], "HOME": home, "IPYTHONDIR": home, "APPWORLD_CACHE": home}
        environment["PYTHONHASHSEED"] = "0"  # as worlds have it: solutions print sets
        done = subprocess.run(
            [str(appworld_python), "-B", str(PLAY)],
            input=json.dumps(job), capture_output=True, text=True, timeout=600, cwd=home, env=environment,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout)

    def play_all(jobs):
        with ThreadPoolExecutor(3) as pool:
            return list(pool.map(run, jobs))

    return play_all


def shared(mode, root, requests, count, chosen=()):
    """The requests dealt out over several jobs."""
    return [
        {"mode": mode, "root": str(root), "adaptations": list(chosen), "requests": requests[i::count]}
        for i in range(count)
    ]


def gathered(results, count):
    """The results of ``shared`` jobs in the order of their requests."""
    total = sum(map(len, results))
    return [results[i % count][i // count] for i in range(total)]


@pytest.fixture(scope="module")
def plain(play, roots, requests):
    return gathered(play(shared("stock", roots.judge, requests, 3)), 3)


@pytest.fixture(scope="module")
def adapted(play, roots, requests):
    return gathered(play(shared("world", roots.agent, requests, 3, adaptations.ALL)), 3)


@pytest.fixture(scope="module")
def judged(play, roots, requests, adapted):
    replays = [{"task_id": r["task_id"], "calls": a["calls"]} for r, a in zip(requests, adapted, strict=True)]
    return gathered(play(shared("judge", roots.judge, replays, 3, adaptations.ALL)), 3)


def test_every_step_prints_the_same(requests, plain, adapted):
    for request, expected, found in zip(requests, plain, adapted, strict=True):
        assert found["said"] == expected["said"], request


def test_a_confined_world_prints_the_same(play, roots, requests, plain):
    some = [i for i, request in enumerate(requests) if request["name"] in ("random", "reference")]
    jobs = shared("confined", roots.agent, [requests[i] for i in some], 3, adaptations.ALL)
    for i, found in zip(some, gathered(play(jobs), 3), strict=True):
        assert found["said"] == plain[i]["said"], requests[i]


def test_every_change_to_the_databases_is_the_same(requests, plain, adapted):
    for request, expected, found in zip(requests, plain, adapted, strict=True):
        assert found["state"] == expected["state"], request


def test_the_judges_replay_leaves_the_same_databases(requests, plain, judged):
    for request, expected, found in zip(requests, plain, judged, strict=True):
        assert found["state"] == expected["state"], request


def test_judge_and_plain_engine_agree_on_every_episode(requests, plain, adapted, judged):
    for request, expected, world, found in zip(requests, plain, adapted, judged, strict=True):
        nowhere = sum(call["status"] == 404 for call in world["calls"])  # such as /notes//, for an empty title
        assert found["verdict"].pop("skipped") <= nowhere, request
        assert found["verdict"].pop("differing") == 0, request
        assert found["verdict"] == expected["verdict"], request
        if request["name"] != "random":  # those may, or may not
            assert expected["verdict"]["success"] == (request["name"] == "reference"), request


def test_the_random_calls_do_something(requests, plain):
    """Else the comparisons above would say little."""
    done = [result for request, result in zip(requests, plain, strict=True) if request["name"] == "random"]
    said = "".join(text for result in done for text in result["said"])
    changed = {app for result in done for app, changes in result["state"].items() if changes}
    assert said.count("Exception") < 0.75 * 40 * len(done)
    assert len(changed) > 6, changed


def test_each_adaptation_may_be_used_alone(play, roots, requests, plain):
    few = [i for i, request in enumerate(requests) if request["name"] in ("random", "reference")]
    few = few[:: max(1, len(few) // 6)]
    jobs = [
        {"mode": "world", "root": str(roots.agent), "adaptations": [name], "requests": [requests[i] for i in few]}
        for name in adaptations.ALL
    ]
    for name, results in zip(adaptations.ALL, play(jobs), strict=True):
        for i, found in zip(few, results, strict=True):
            assert (found["said"], found["state"]) == (plain[i]["said"], plain[i]["state"]), (name, requests[i])


def test_another_version_is_refused():
    with pytest.raises(ValueError, match=r"are for appworld 0\.1\.3\.post1, this is 0\.1\.4"):
        adaptations.apply(["keep_app"], "0.1.4")


def test_an_unknown_adaptation_is_refused():
    with pytest.raises(ValueError, match=r"unknown adaptations keep_ap; choose from keep_app,"):
        adaptations.apply(["keep_ap"], adaptations.VERSION)
