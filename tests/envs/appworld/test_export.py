"""`harness.export appworld`: AppWorld's own commands give our verdicts on each task's outputs, and our TGC and SGC.

3 tasks of the mini world are played, or all with EH_DIFFERENTIAL=all.
"""

import json
import os
import shutil
import subprocess

import gymnasium as gym
import pytest
from rich.console import Console

from envs.appworld import data
from harness.evaluation.folder import EvaluationFolder
from harness.evaluation.requests import evaluation_requests
from harness.evaluation.result import summarise
from harness.export.appworld_outputs import write_appworld_outputs
from harness.records.episode_log import episode_line
from harness.types.trajectory import Trajectory, Turn

pytestmark = pytest.mark.campaign

# It never completes its task. The last message is too long to be run.
EMPTY = ["I wonder what to do.", "print(apis.supervisor.show_profile())", "print(1)\n#" + "x" * 200_000]


def chosen():
    """Two tasks of one scenario and one of another, or all."""
    tasks = sorted(data.task_ids("mini"))
    if os.environ.get("EH_DIFFERENTIAL") == "all":
        return tasks
    other = next(task_id for task_id in tasks if task_id.split("_")[0] != tasks[0].split("_")[0])
    return [*tasks[:2], other]


def expert(solution, number):
    return solution


def empty(solution, number):
    return EMPTY


def damaged(solution, number):
    return (
        solution if number % 3 == 0 else [step for i, step in enumerate(solution) if i != number % (len(solution) - 1)]
    )


def evaluation(folder, agent, tasks):
    kept = EvaluationFolder(folder, {"env": "EH-AppWorld-v0", "env_args": {}, "split": "mini", "seed": 0})
    env, played = gym.make("EH-AppWorld-v0", split="mini"), []
    root = data.root_of("mini")
    for number, request in enumerate(evaluation_requests(tasks, 1, 0)):
        t = Trajectory(request.task_id, request.group, seed=request.seed)
        t.begin(*env.reset(options={"task_id": request.task_id}))
        for code in agent(list(data.reference("mini", request.task_id)), number):
            t.turns.append(Turn(f"```python\n{code}\n```"))
            if t.add_answer(env.step(t.turns[-1].action)):
                break
        else:
            t.end = "horizon"
        assert t.kinds["difficulty"] == str(data.difficulty(root, request.task_id))
        kept.add(t)
        played.append(t)
    kept.close()
    env.close()
    return played


def root_with(tasks, root):
    """A root of AppWorld's whose split test_normal has these tasks of the mini world: `appworld pack` takes no other
    names."""
    (root / "data" / "datasets").mkdir(parents=True)
    for path in (data.root_of("mini") / "data").iterdir():
        if path.name != "datasets":
            (root / "data" / path.name).symlink_to(path)
    (root / "data" / "datasets" / "test_normal.txt").write_text("\n".join(tasks))
    return root


def upstream(python, root, code, *arguments):
    """Runs what AppWorld's commands call; their command line imports packages that the backend leaves out."""
    env = {**os.environ, "APPWORLD_ROOT": str(root)}
    subprocess.run([python, "-c", code, *arguments], cwd=root, env=env, check=True, capture_output=True)


def evaluated(python, root, name):
    shutil.rmtree(root / "experiments" / "outputs" / name / "evaluations", ignore_errors=True)
    code = "import sys; from appworld.evaluator import evaluate_dataset; evaluate_dataset(*sys.argv[1:])"
    upstream(python, root, code, name, "test_normal")
    found = json.loads((root / "experiments" / "outputs" / name / "evaluations" / "test_normal.json").read_text())
    return {task_id: verdict["success"] for task_id, verdict in found["individual"].items()}, found["aggregate"]


def test_appworld_s_own_commands_give_our_verdicts(appworld_python, tmp_path):
    tasks = chosen()
    root = root_with(tasks, tmp_path / "root")
    for agent in (expert, empty, damaged):
        name = agent.__name__
        played = evaluation(tmp_path / name, agent, tasks)
        count, *notes, _ = write_appworld_outputs(tmp_path / name, root, Console(quiet=True), name=name)
        assert count.endswith(f": {len(tasks)} tasks, {len(data.task_ids('mini')) - len(tasks)} missing")
        assert all("were solved but not completed" in note for note in notes), "no verdict differs"
        outputs = root / "experiments" / "outputs" / f"{name}_test_normal"
        outputs.with_name(f"{name}_mini").rename(outputs)
        verdicts, found = evaluated(appworld_python, root, outputs.name)
        stopped = {task_id for task_id in tasks if task_id in "".join(notes)}
        assert verdicts == {t.task_id: t.success or t.task_id in stopped for t in played}
        ours = summarise([episode_line(t, {}) for t in played])
        if not stopped:
            assert found["task_goal_completion"] == round(100 * ours.mean_at_k, 1)
            assert found["scenario_goal_completion"] == round(100 * ours.scenarios_at_k, 1)
        solved = sum(t.success for t in played)
        assert {expert: solved == len(tasks), empty: solved == 0, damaged: 0 < solved < len(tasks)}[agent]
        logs = outputs / "tasks" / tasks[0] / "logs"
        assert (logs / "environment_io.md").read_text().count("### Environment Interaction") == len(played[0].turns)
        calls = [json.loads(line) for line in (logs / "api_calls.jsonl").read_text().splitlines()]
        assert all(set(call) == {"method", "url", "data"} for call in calls)
    # the last agent's outputs, in AppWorld's bundle for its leaderboard, and out of it again elsewhere
    code = "import sys; from appworld import leaderboard; leaderboard.{}_experiment(*sys.argv[1:])"
    told = ["test_normal", "Method", "about it", "model", "about the model", "https://example.org"]
    upstream(appworld_python, root, code.format("pack"), outputs.name, *told)
    other = root_with(tasks, tmp_path / "other")
    there = other / "experiments" / "outputs" / outputs.name
    there.mkdir(parents=True)
    shutil.copy(outputs / "leaderboard.bundle", there)
    upstream(appworld_python, other, code.format("unpack"), outputs.name)
    assert json.loads((there / "metadata.json").read_text())["dataset"] == "test_normal"
    for task_id in tasks:  # AppWorld's bundle lacks them, and without them its evaluation overlooks some changes
        hashes = f"tasks/{task_id}/dbs/model_hashes.json"
        shutil.copy(outputs / hashes, there / hashes)
    assert evaluated(appworld_python, other, outputs.name)[0] == verdicts
