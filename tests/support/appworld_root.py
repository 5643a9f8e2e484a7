"""A root of AppWorld's data, its files' content of no use. test_install.py runs this text."""

import json
from pathlib import Path


def write_world(root, **splits):
    files = {"base_dbs/spotify.db": "x", "api_docs/standard/spotify.json": "{}", "version.txt": "0.1.0"}
    for split, tasks in splits.items():
        names = [f"{split}_{i}" for i in range(tasks)] if isinstance(tasks, int) else tasks
        files[f"datasets/{split}.txt"] = "\n".join(names)
        for task in names:
            files[f"tasks/{task}/specs.json"] = json.dumps({"db_version": "0.1.0"})
            files[f"tasks/{task}/dbs/supervisor.jsonl"] = ""
            files[f"tasks/{task}/ground_truth/evaluation.py"] = "x"
    for name, text in files.items():
        path = Path(root, "data", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
