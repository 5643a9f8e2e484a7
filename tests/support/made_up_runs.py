"""Run and sweep folders as the harness writes them, made up: no model, no environment, no time."""

import json
import math

import numpy as np

from harness.records.episode_log import write_episodes
from harness.settings.grpo import from_recipe
from harness.settings.section import changed
from harness.sweep.suites import suite_file
from harness.types.sampler import Sample
from harness.types.trajectory import Trajectory, Turn

HOSTILE = "</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">&amp;"
"""What an environment or a model may say, and no page may run."""


def write_run(folder, *, updates=12, ceiling=0.9, k_from=10.0, k_to=30.0, ended=True, **settings):
    folder.mkdir(parents=True)
    config = changed(from_recipe("quickstart"), out=folder, updates=updates, **settings)
    (folder / "config.json").write_text(config.to_json())
    (folder / "versions.json").write_text(json.dumps({"python": "3.11", "torch": "2.13"}))
    rng = np.random.default_rng(config.seed)
    total = 0.0
    with (folder / "metrics.jsonl").open("w") as file:
        for update in range(updates):
            done = 1 - math.exp(-4 * (update + 1) / updates)
            k = k_from + (k_to - k_from) * done
            tokens = 300.0 * k * (1 + 0.05 * float(rng.standard_normal()))
            total += tokens
            row = {
                "update": update,
                "horizon/k": math.floor(k),
                "horizon/k_real": k,
                "rollout/success": min(1.0, max(0.0, ceiling * done + 0.03 * float(rng.standard_normal()))),
                "rollout/length_success_mean": 0.4 * k,
                "tokens/update": tokens,
                "tokens/total": total,
                "time/update_s": 0.02 * k,
                "time/total_s": 0.02 * k * (update + 1),
            }
            if (update + 1) % 3 == 0:
                row["evaluation/mean_at_k"] = min(1.0, max(0.0, ceiling * done + 0.02 * float(rng.standard_normal())))
            file.write(json.dumps(row) + "\n")
    if ended:
        lengths = rng.integers(3, 30, size=int(100 * ceiling)).tolist()
        after = {"mean_at_k": ceiling + 0.01 * float(rng.standard_normal()), "best_at_k": min(1.0, ceiling + 0.1)}
        greedy = {"mean_at_k": ceiling, "best_at_k": ceiling}
        before = {"sampled": {"mean_at_k": 0.1, "best_at_k": 0.2}, "greedy": {"mean_at_k": 0.1, "best_at_k": 0.1}}
        after |= {"success_lengths": lengths}
        evaluation = {"before": before, "after": {"sampled": after, "greedy": greedy}}
        (folder / "evaluation.json").write_text(json.dumps(evaluation))
    return folder


def write_log(folder, *, updates, tasks, group=8, hostile=False):
    for update in range(updates):
        trajectories = []
        for task in range(tasks):
            for member in range(group):
                success = member == 0
                t = Trajectory(
                    f"train-{update:03d}-{task:02d}", task, horizon=6, success=success, reward=float(success)
                )
                t.system_prompt, t.prompt = "The rules.", f"start {update} {task}"
                t.end = "terminated" if success else "horizon"
                t.add_prompt([1] * 4)
                for turn in range(2 if success else 6):
                    t.add_sample(Sample([2, 3, 4], [-0.1] * 3, "stop", update))
                    t.add_prompt([5, 6])
                    said = HOSTILE if hostile and turn == 0 else f"answer {turn}"
                    t.turns.append(Turn(f"open({task})", said, False, False, action_tokens=3, observation_tokens=2))
                trajectories.append(t)
        # The task of group 0 has an advantage; of the others none of the episodes is in the loss.
        chosen = [(t, 2.6 if t.success else -0.4) for t in trajectories if t.group == 0]
        write_episodes(folder / "episodes", update, trajectories, chosen)


def write_sweep(out, *, only, seeds=3, updates=12):
    (out / "suites").mkdir(parents=True)
    for suite in only:
        said = []
        for i, (label, own) in enumerate(suite_file(suite).arms.items()):
            k0, fixed = own.get("k0", 15), own["wrapper"] == "fixed"
            shape = {"k_from": k0, "k_to": k0 if fixed else 28, "ceiling": 0.92 * min(1, k0 / 20) if fixed else 0.9}
            runs = [{"seed": seed, "folder": f"../runs/{suite}-{i}-seed{seed}"} for seed in range(seeds)]
            for run in runs:
                folder = out / "suites" / run["folder"]
                write_run(folder.resolve(), updates=updates, seed=run["seed"], **own, **shape)
            said.append({"label": label, "settings": own, "runs": runs})
        manifest = {"suite": suite, "env": "EH-Cabinet-v0", "model": "tiny", "threshold": 0.5}
        (out / "suites" / f"{suite}.json").write_text(json.dumps(manifest | {"base": {}, "arms": said}))
    return out
