"""Plays code with AppWorld's engine as its README says, without a line of this project, in AppWorld's virtualenv.

It reads a job as JSON from stdin, and writes its results as JSON to stdout. It plays requests in several lanes at once.
Every
request has a process of its own: the engine, used for one task after the other in one process, lets some of an episode
through to the next.
"""

import contextlib
import json
import os
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path


def state(folder):
    """App -> every change to its database."""
    return {path.stem: path.read_text() for path in sorted(Path(folder).glob("*.jsonl"))}


def stock(request):
    from appworld import AppWorld

    with AppWorld(task_id=request["task_id"], experiment_name=f"stock-{os.getpid()}") as world:
        said = [world.execute(code) for code in request["steps"]]
        verdict = world.evaluate()
        left = state(world.output_db_home_path_on_disk)
    found = {"success": verdict.success, "passed": verdict.pass_count, "total": verdict.num_tests}
    found["failures"] = [failure["requirement"] for failure in verdict.failures]
    return {"said": said, "verdict": found, "state": left}


def apart(request):
    with ProcessPoolExecutor(1, mp_context=get_context("fork")) as one:
        return one.submit(stock, request).result()


def lane(requests):
    return [apart(request) for request in requests]


def main():
    job = json.load(sys.stdin)
    with contextlib.redirect_stdout(sys.stderr), tempfile.TemporaryDirectory(prefix="eh-play-") as folder:
        os.chdir(folder)
        import appworld

        # The engine writes its outputs beside the data.
        (Path(folder) / "data").symlink_to(Path(job["root"]) / "data")
        appworld.update_root(folder)
        with appworld.AppWorld(task_id=job["requests"][0]["task_id"], experiment_name="warm-up") as opened:
            opened.execute("print(1)")  # some seconds of imports, which the forks need not repeat
        count = min(os.cpu_count() or 1, len(job["requests"]))
        with ProcessPoolExecutor(count, mp_context=get_context("fork")) as lanes:
            played = list(lanes.map(lane, [job["requests"][i::count] for i in range(count)]))
        results = [played[i % count][i // count] for i in range(len(job["requests"]))]
        os.chdir("/")
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main()
