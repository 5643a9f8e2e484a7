"""Two processes and the adaptations change nothing: against AppWorld's engine, used as its README says.

Compared are what each step prints, the verdict with every failed requirement, and every change to every database, over
mini tasks, solved rightly and wrongly, and over random API calls: over one variant of each scenario, and over all with
EH_DIFFERENTIAL=all. What the plain engine answers is kept in the cache, by the hash of all that it depends on.
"""

import hashlib
import json
import os
import random
import subprocess
from pathlib import Path

import pytest

from envs import backends
from envs.appworld import data, forks, hosts
from envs.cache import cache_dir

pytestmark = pytest.mark.timeout(1200)  # 40 s on a quiet machine, and with EH_DIFFERENTIAL=all two minutes
PLAY = Path(__file__).with_name("play.py")
# Every wrong solution, and random calls, of every task: some minutes more.
ALL = os.environ.get("EH_DIFFERENTIAL") == "all"
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

# What an agent's code may do beside solving its task: errors of apps and of the client, requests past `apis`, time.
EDGES = [
    "apis.spotify.show_song(song_id=10**20)",
    "try:\n    apis.spotify.show_song(song_id=10**20)\nexcept OverflowError as e:\n"
    "    print(repr(e), e.args, e.__cause__, e.__context__)",
    "print(sorted(apis.keys()), list(apis.admin), type(requester.client).__name__, requester.date_and_time, "
    "requester.apps)",
    "r = requester.client.get('/spotify/songs/1')\nprint(r.status_code, r.text, sorted(r.headers.items()), r.url, "
    "r.history)",
    "r = requester.client.get('/spotify/songs/1/')\nprint(r.status_code, r.text, r.url, r.history)",
    "r = requester.client.head('/spotify/openapi.json')\nprint(r.status_code, r.content, r.headers['content-length'])",
    "r = requester.client.options('/spotify/songs/1', headers={'origin': 'x', 'access-control-request-method': "
    "'GET'})\nprint(r.status_code, r.text, sorted(r.headers.items()))",
    "print(requester.client.post('/spotify/auth/token', data={'username': 'é', 'password': 'x y&z'}).text)",
    "print(requester.client.post('/spotify/auth/token', content=b'\\xff', headers={'content-type': "
    "'application/json'}).text)",
    "print(requester.client.get('/nowhere/x').text, requester.client.get('http://elsewhere.org/spotify/songs/1').text)",
    "apis.nothing.x()",
    "apis.spotify.nothing()",
    "requester.request('spotify', 'nothing')",
    "print(requester.get('spotify'), requester.post('/spotify/songs/1', data=[1]))",
    "requester.get('/spotify/songs/99999')",
    "requester.client.get('/spotify/songs/' + 'x' * 70_000)",
    "import random, time\nprint(random.random(), time.time(), DateTime.now(), pendulum.now())",
    "for _ in range(1001): apis.supervisor.show_profile()",
    "print(len(requester.requests), requester.requests[-1])",
    "with requester.client.stream('GET', '/spotify/songs/1') as r:\n    print(r.is_closed, b''.join(r.iter_bytes()))",
    "exit()",
    "input('?')",
    "print([k for k in globals() if not k.startswith('_')])",
    "apis.supervisor.complete_task(answer='wrong')",
]

# Threads that go on between steps and call while the next ones run.
_EXECUTOR = """\
pool = __import__("concurrent.futures").futures.ThreadPoolExecutor({workers})
calls = [pool.submit(apis.supervisor.show_profile) for _ in range(40)]"""
_THREAD = """\
threading, emails, stop = __import__("threading"), set(), __import__("threading").Event()
def ask():
    while not stop.wait({pause_s}):
        try:
            emails.add(apis.supervisor.show_profile()["email"])
        except BaseException as error:
            emails.add(repr(error))
thread = threading.Thread(target=ask)
thread.start()"""
_STEPS = [f"print({n}, apis.supervisor.show_profile()['first_name'])" for n in range(8)]
_END = "apis.supervisor.complete_task(answer='wrong')"
THREADS = {
    **{
        f"executor of {workers or 'the default'}": [
            _EXECUTOR.format(workers=workers), "print({call.result()['email'] for call in calls})", *_STEPS, _END,
        ]
        for workers in ("", 4, 32)
    },
    **{
        f"thread, every {pause_s:g} s": [
            _THREAD.format(pause_s=pause_s), *_STEPS, "print(emails - {apis.supervisor.show_profile()['email']})",
            f"stop.set()\nthread.join()\n{_END}",
        ]
        for pause_s in (0.001, 0.01, 0.1)
    },
}  # fmt: skip


def random_value(parameter, rng):
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
def root(appworld_python):
    return data.root_of("mini")


@pytest.fixture(scope="module")
def requests(root):
    """Of each scenario the reference solution, random calls and one that is wrong, too much or empty; or all."""
    documents = [
        document
        for path in sorted((root / "data" / "api_docs" / "standard").glob("*.json"))
        for document in json.loads(path.read_text()).values()
    ]
    one = {"edges": EDGES} | THREADS
    found = [{"task_id": data.task_ids("mini")[0], "name": name, "steps": steps} for name, steps in one.items()]
    found += found[1:] * (19 if ALL else 0)  # what depends on time is tried often
    by_scenario = {}
    for task_id in data.task_ids("mini"):
        by_scenario.setdefault(task_id.split("_")[0], []).append(task_id)
    # The variants of a scenario run the same code with other names and numbers.
    chosen = [task_id for k, tasks in enumerate(by_scenario.values()) for task_id in (tasks if ALL else [tasks[k % 4]])]
    for number, task_id in enumerate(chosen):
        truth = root / "data" / "tasks" / task_id / "ground_truth"
        others = json.loads((truth / "wrong.json").read_text())
        others["empty"] = ["apis.supervisor.complete_task()"]
        calls = CALL.format(calls=random_calls(documents, random.Random(number), 60))
        others["random"] = [LOG_IN, calls, "apis.supervisor.complete_task(answer=1)"]
        names = sorted(others) if ALL else ["random", ("wrong", "collateral", "empty")[number % 3]]
        solutions = {"reference": json.loads((truth / "steps.json").read_text())} | {
            name: others[name] for name in names
        }
        found += [{"task_id": task_id, "name": name, "steps": steps} for name, steps in solutions.items()]
    return found


@pytest.fixture(scope="module")
def play(appworld_python, root, tmp_path_factory):
    """Plays requests with the plain engine."""
    home = str(tmp_path_factory.mktemp("home"))

    def run(requests):
        environment = {"PATH": os.environ["PATH"], "HOME": home, "IPYTHONDIR": home, "APPWORLD_CACHE": home}
        environment["PYTHONHASHSEED"] = "0"  # as worlds have it: solutions print sets
        done = subprocess.run(
            [str(appworld_python), "-B", str(PLAY)], input=json.dumps({"root": str(root), "requests": requests}),
            capture_output=True, text=True, timeout=1200, cwd=home, env=environment,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout)

    return run


@pytest.fixture(scope="module")
def plain(play, requests):
    """The plain engine's results; those that were computed before, by the same sources, come from the cache."""
    folder = cache_dir() / "appworld" / "plain-engine"
    folder.mkdir(parents=True, exist_ok=True)
    sources = PLAY.read_bytes() + str((data.mini_dir().name, data.BACKEND.requirements)).encode()

    def place(request):
        text = sources + backends.venv_dir(data.BACKEND).name.encode() + json.dumps(request).encode()
        return folder / f"{hashlib.sha256(text).hexdigest()[:32]}.json"

    missing = [request for request in requests if not place(request).exists()]
    if missing:
        for request, result in zip(missing, play(missing), strict=True):
            unfinished = place(request).with_suffix(f".{os.getpid()}")
            unfinished.write_text(json.dumps(result))
            unfinished.replace(place(request))
    return [json.loads(place(request).read_text()) for request in requests]


@pytest.fixture(scope="module")
def host(appworld_python, root):
    """A host whose worlds can open nothing: what the engine needs must be there before."""
    command, strict = forks.backend_command, Path(__file__).with_name("strict_zygote.py")
    settings = hosts.Settings(step_timeout_s=100, max_observation_chars=10**6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forks, "backend_command", lambda python, backend: command(python, strict))
        host = hosts.Host(appworld_python, root, settings)
    yield host
    host.close()


@pytest.fixture(scope="module")
def ours(host, requests, tmp_path_factory):
    found = []
    for request in requests:
        world, folder = host.open(request["task_id"], record=True), tmp_path_factory.mktemp("outputs")
        said = [world.execute(code)["output"] for code in request["steps"]]
        world.save(folder / "task", [])
        verdict = world.verdict()
        world.close()
        state = {path.stem: path.read_text() for path in sorted((folder / "task" / "dbs").glob("*.jsonl"))}
        found.append({"said": said, "verdict": verdict, "state": state})
    return found


@pytest.mark.parametrize("part", ["said", "verdict", "state"])
def test_worlds_and_the_plain_engine_agree(requests, plain, ours, part):
    for request, expected, found in zip(requests, plain, ours, strict=True):
        assert found[part] == expected[part], request


def test_the_random_calls_do_something(requests, plain):
    done = [result for request, result in zip(requests, plain, strict=True) if request["name"] == "random"]
    said = "".join(text for result in done for text in result["said"])
    changed = {app for result in done for app, changes in result["state"].items() if changes}
    assert said.count("Exception") < 0.75 * 60 * len(done)
    assert len(changed) > 6, changed
