"""Finds AppWorld's data: the folder that AppWorld calls its root, a split's tasks, and their reference solutions.

The root has a random name, because an agent's code could learn answers from the sizes of files whose paths it knows.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from pathlib import Path

from eh_gym.errors import ConfigError, EHError, MissingBackendError
from envs.backends import read_pins
from envs.cache import cache_dir
from envs.description import Backend

_HERE = Path(__file__).parent
BENCHMARK: Mapping[str, int] = {"train": 90, "dev": 57, "test_normal": 168, "test_challenge": 417}  # split -> tasks
SPLITS = (*BENCHMARK, "mini")
BACKEND = Backend(
    "appworld",
    "0.1.3.post1",
    read_pins(_HERE / "requirements.txt"),
    python=(3, 11),
    finish=_HERE / "backend" / "unpack.py",
    installer="envs.appworld.install",
)
DATA_VERSION = "0.1.0"
BUILDER = _HERE / "mini" / "build.py"

_TASK_ID = re.compile(r"[A-Za-z0-9]+_[0-9]+")
# AppWorld marks its files with this line, to find them in training data.
_CANARY = "# Canary String: "


def mini_dir() -> Path:
    digest = hashlib.sha256(BACKEND.version.encode())
    for path in sorted(BUILDER.parent.rglob("*.py")):
        digest.update(path.relative_to(BUILDER.parent).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return cache_dir() / "appworld" / f"mini-{digest.hexdigest()[:16]}"


def benchmark_dir() -> Path:
    return cache_dir() / "appworld" / f"benchmark-{DATA_VERSION}"


def root_of(split: str) -> Path:
    if split not in SPLITS:
        raise ConfigError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    folder = mini_dir() if split == "mini" else benchmark_dir()
    if folder.is_dir():
        return next(path for path in folder.iterdir() if path.is_dir())
    if split == "mini":
        raise MissingBackendError(
            f"AppWorld's mini world for this version of the project is not in {folder.parent}; "
            "run: python -m envs install appworld"
        )
    raise MissingBackendError(
        f"AppWorld's benchmark (split {split!r}) is not in {folder.parent}; with access to the internet, run: "
        "python -m envs install appworld; otherwise set EH_APPWORLD_DATA_URL to a mirror, a bundle, or a folder that "
        "holds AppWorld's data before that command; split 'mini' needs none of this"
    )


def task_ids(split: str) -> tuple[str, ...]:
    root = root_of(split)
    ids = _read_ids(root, split)
    if not ids:
        raise MissingBackendError(
            f"{root} holds no tasks of split {split!r} (data/datasets/{split}.txt is missing or empty); choose another "
            "split"
        )
    return ids


def reference(split: str, task_id: str) -> list[str] | None:
    """The reference solution of a task, one piece of code for each step; None if the data hold none.

    The benchmark has solutions for train and dev, of one step each.
    """
    if task_id not in task_ids(split):
        raise ConfigError(f"there is no task {task_id!r} in split {split!r}; envs.appworld.data.task_ids lists them")
    folder = root_of(split) / "data" / "tasks" / task_id / "ground_truth"
    if (folder / "steps.json").is_file():
        steps: list[str] = json.loads((folder / "steps.json").read_text(encoding="utf-8"))
        return steps
    for name in ("compiled_solution.py", "solution.py"):
        if (folder / name).is_file():
            lines = (folder / name).read_text(encoding="utf-8").splitlines()
            code = "\n".join(line for line in lines if not line.startswith(_CANARY)).strip()
            return [f"requester.raise_on_failure = False\n{code}\nsolution(apis, requester)"]
    return None


def difficulty(root: Path, task_id: str) -> int | None:
    try:
        text = (root / "data" / "tasks" / task_id / "ground_truth" / "metadata.json").read_text(encoding="utf-8")
        return int(json.loads(text)["difficulty"])
    except (OSError, KeyError, TypeError, ValueError):
        return None


def check_root(root: Path, counts: Mapping[str, int | None]) -> None:
    """Checks that the data have our version and all files that engine and evaluation need.

    `counts` maps each split to its number of tasks; None allows any number except 0.
    """
    data = root / "data"
    for pattern in ("base_dbs/*.db", "api_docs/standard/*.json"):
        if not any(path.stat().st_size for path in data.glob(pattern)):
            raise EHError(f"the data are incomplete: {data / pattern} is missing or empty")
    for split, count in counts.items():
        identifiers = _read_ids(root, split)
        listed = len(set(identifiers))
        if listed != (count or len(identifiers) or 1):
            raise EHError(f"the data are incomplete: {split} lists {listed} tasks, expected {count or 'at least one'}")
        for identifier in identifiers:
            task = data / "tasks" / identifier
            for needed in ("specs.json", "dbs/supervisor.jsonl", "ground_truth/evaluation.py"):
                if not (task / needed).is_file():
                    raise EHError(f"the data are incomplete: task {identifier} of {split} has no {needed}")
            version = json.loads((task / "specs.json").read_text(encoding="utf-8")).get("db_version")
            if version != DATA_VERSION:  # the engine would refuse the task
                raise EHError(
                    f"the data have version {version}, expected {DATA_VERSION} (task {identifier} of {split})"
                )


def _read_ids(root: Path, split: str) -> tuple[str, ...]:
    path = root / "data" / "datasets" / f"{split}.txt"
    if not path.is_file():
        return ()
    # AppWorld allows a tag after a colon in each line.
    ids = [line.strip().split(":")[0] for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    strange = [identifier for identifier in ids if not _TASK_ID.fullmatch(identifier)]
    if strange:
        raise EHError(f"{path} lists {strange[0]!r}, which is not a task's id")
    return tuple(ids)
