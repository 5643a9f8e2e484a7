"""Plays code with AppWorld's engine, in AppWorld's virtualenv: a job as JSON on stdin, its results as JSON on stdout.

A job warms up once, as "stock", as a "world" or as a "judge", and then plays its requests in several lanes at once. Every
request has a process of its own: the engine, used for one task after the other in one process, lets some of an episode
through to the next. A request has a mode. "stock" uses the engine as its README says, without a line of this project; "world"
plays as an episode's process does, with the adaptations; "confined" likewise, confined as on the strictest host; "judge"
evaluates recorded calls as a judge's process does.
"""

import contextlib
import importlib.util
import json
import os
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

BACKEND = Path(__file__).resolve().parents[3] / "envs" / "appworld" / "backend"


def backend(name):
    """A module of the backend, loaded as the worker protocol loads it."""
    if "eh_backend" not in sys.modules:
        spec = importlib.util.spec_from_file_location(
            "eh_backend", BACKEND / "__init__.py", submodule_search_locations=[str(BACKEND)]
        )
        sys.modules["eh_backend"] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules["eh_backend"])
    return importlib.import_module(f"eh_backend.{name}")


def state(folder):
    """App -> every change to its database."""
    return {path.stem: path.read_text() for path in sorted(Path(folder).glob("*.jsonl"))}


def stock(request):
    from appworld import AppWorld

    with AppWorld(task_id=request["task_id"], experiment_name=f"stock-{os.getpid()}") as world:
        said = [world.execute(code) for code in request["steps"]]
        verdict = world.evaluate()
        left = state(world.output_db_home_path_on_disk)
    failures = [failure["requirement"] for failure in verdict.failures]
    verdict = {
        "success": verdict.success,
        "passed": verdict.pass_count,
        "total": verdict.num_tests,
        "failures": failures,
    }
    return {"said": said, "verdict": verdict, "state": left}


def world(request):
    episode = backend("world")
    opened, line = episode.open_world(request["task_id"], 100.0, 1000)
    answers = [episode.step(opened, line, code, 10**9) for code in request["steps"]]
    backend("adaptations").flush(opened)
    calls = [call for answer in answers for call in answer["calls"]]
    said = [answer["output"] for answer in answers]
    return {"said": said, "calls": calls, "state": state(opened.output_db_home_path_on_disk)}


def confined(request):
    """As ``world``, and nothing can be opened, not even to read: what the engine needs must be there by then."""
    episode, confine = backend("world"), backend("confine")
    opened, line = episode.open_world(request["task_id"], 100.0, 1000)
    confine.confine(0, os.getcwd(), confine.Limits(), [], use_landlock=False)
    answers = [episode.step(opened, line, code, 10**9) for code in request["steps"]]
    return {"said": [answer["output"] for answer in answers]}


def judge(request):
    replay = backend("judge").Replay(request["task_id"], backend("calls").public_routes())
    replay.make(request["calls"])
    verdict = replay.verdict()
    outputs = Path(os.environ["APPWORLD_ROOT"], "experiments", "outputs", backend("world").experiment_name(os.getpid()))
    return {"verdict": verdict, "state": state(outputs / "tasks" / request["task_id"] / "dbs")}


def apart(request):
    """What a request's mode returns, from a process forked for it."""
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as one:
        return one.submit(globals()[request["mode"]], request).result()


def lane(requests):
    """The results of requests, one after the other."""
    return [apart(request) for request in requests]


def main():
    """One job."""
    job = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr), tempfile.TemporaryDirectory(prefix="eh-play-") as folder:
        os.chdir(folder)
        if job["role"] == "stock":
            import appworld

            # The engine writes its outputs beside the data.
            (Path(folder) / "data").symlink_to(Path(job["root"]) / "data")
            appworld.update_root(folder)
            with appworld.AppWorld(task_id=job["requests"][0]["task_id"], experiment_name="warm-up") as opened:
                opened.execute("print(1)")  # some seconds of imports, which the forks need not repeat
        else:
            backend("zygote")._Zygote(job["root"], job["role"], folder, False)
        count = min(os.cpu_count() or 1, len(job["requests"]))
        with ProcessPoolExecutor(count, mp_context=get_context("fork")) as lanes:
            played = list(lanes.map(lane, [job["requests"][i::count] for i in range(count)]))
        results = [played[i % count][i // count] for i in range(len(job["requests"]))]
        os.chdir("/")
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
