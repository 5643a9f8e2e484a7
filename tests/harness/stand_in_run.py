"""A stand-in for ``harness.grpo`` that trains nothing: `python stand_in_run.py --resume FOLDER`.

It writes what a run writes, one checkpointed update at a time, and counts its starts. A seed named in the environment
variable FAIL fails after an update.
"""

import json
import os
import sys
from pathlib import Path

folder = Path(sys.argv[2])
config = json.loads((folder / "config.json").read_text())
with (folder / "starts").open("a") as file:
    file.write("start\n")
log = folder / "metrics.jsonl"
done = len(log.read_text().splitlines()) if log.exists() else 0
print(f"starting at update {done}", flush=True)
for update in range(done, config["updates"]):
    row = {"update": update, "horizon/k": 10 + update, "rollout/success": 0.5, "tokens/update": 10.0}
    row |= {"tokens/total": 10.0 * (update + 1), "time/update_s": 1.0, "time/total_s": update + 1.0}
    with log.open("a") as file:
        file.write(json.dumps(row) + "\n")
    if str(config["seed"]) == os.environ.get("FAIL"):
        sys.exit("the stand-in fails, as it was told")
result = {"mean_at_k": 0.25 * (1 + config["seed"]), "best_at_k": 1.0, "success_lengths": [4, 12, 22]}
evaluation = {"before": {"sampled": result, "greedy": result}, "after": {"sampled": result, "greedy": result}}
(folder / "evaluation.json").write_text(json.dumps(evaluation))
