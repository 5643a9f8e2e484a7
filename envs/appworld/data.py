"""Where AppWorld's data are: the folders for the judge and for the agent, the tasks of a split, their reference solutions.

Left out: building and downloading (``install.py``). Nothing here writes, but for one folder: the agent's half of data that
APPWORLD_ROOT names is made in the cache when it is first asked for.

The judge's folder holds everything. The agent's holds only what the engine reads to open a task's world: whatever its code
may find there, it finds no answer, no solution and no evaluation.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from eh_gym.errors import ConfigError, EHError, MissingBackendError
from envs import runtime

__all__ = [
    "BENCHMARK",
    "SPLITS",
    "Roots",
    "benchmark_dir",
    "check_root",
    "difficulty",
    "given_root",
    "mini_dir",
    "reference",
    "roots",
    "task_ids",
    "write_agent_root",
]

BENCHMARK: Mapping[str, int] = {"train": 90, "dev": 57, "test_normal": 168, "test_challenge": 417}  # split -> tasks
SPLITS = (*BENCHMARK, "mini")
DATA_VERSION = "0.1.0"
BUILDER = Path(__file__).parent / "mini" / "build.py"

_TASK_ID = re.compile(r"[A-Za-z0-9]+_[0-9]+")
_made: dict[
    Path, Path
] = {}  # a given root -> its agent's half; looked at once per process, the benchmark has 10,000 files
_CANARY = (
    "# Canary String: "  # marks AppWorld's own files, so that they can be found in training data; not a solution's
)


@dataclass(frozen=True)
class Roots:
    """Two folders, each what AppWorld calls its root.

    Attributes:
        judge: Holds everything.
        agent: Holds no ground truth.
        version: Names the data: ``mini-DIGEST``, or ``benchmark-`` and the version that the data state.
    """

    judge: Path
    agent: Path
    version: str


def mini_dir() -> Path:
    """Where the mini world of these sources and this version of AppWorld stands, or would stand."""
    digest = hashlib.sha256(runtime.BACKENDS["appworld"].version.encode())
    for path in sorted(BUILDER.parent.rglob("*.py")):
        digest.update(path.relative_to(BUILDER.parent).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return runtime.cache_dir() / "appworld" / f"mini-{digest.hexdigest()[:16]}"


def benchmark_dir() -> Path:
    """Where the benchmark stands, or would stand, once it is downloaded."""
    return runtime.cache_dir() / "appworld" / f"benchmark-{DATA_VERSION}"


def given_root() -> Path | None:
    """The folder that APPWORLD_ROOT names, if it holds tasks; it then stands for the benchmark's."""
    root = os.environ.get("APPWORLD_ROOT")
    if not root or not (Path(root).expanduser() / "data" / "tasks").is_dir():
        return None
    return Path(root).expanduser().resolve()


def roots(split: str) -> Roots:
    """The folders that hold a split.

    Raises:
        ConfigError: There is no such split.
        MissingBackendError: Its data are not there; the message says how to get them.
    """
    judge, agent, version = _place(split)
    return Roots(judge, agent or _agent_of(judge), version)


def task_ids(split: str) -> tuple[str, ...]:
    """The tasks of a split, in AppWorld's order.

    Raises:
        ConfigError: There is no such split.
        MissingBackendError: The split is not there; the message says how to get it.
    """
    root = _place(split)[0]
    found = _read_ids(root, split)
    if not found:
        raise MissingBackendError(
            f"{root} holds no tasks of split {split!r} (data/datasets/{split}.txt is missing or empty); "
            "choose another split, or another APPWORLD_ROOT"
        )
    return found


def reference(split: str, task_id: str) -> list[str] | None:
    """The reference solution of a task, one piece of code per turn; None where the data hold none.

    The benchmark's own solutions, there for train and dev, are one function; it is run as AppWorld's ``verify`` runs it.

    Raises:
        ConfigError: There is no such split, or no such task in it.
    """
    if task_id not in task_ids(split):
        raise ConfigError(f"there is no task {task_id!r} in split {split!r}; envs.appworld.data.task_ids lists them")
    folder = _place(split)[0] / "data" / "tasks" / task_id / "ground_truth"
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
    """How hard AppWorld's authors call a task, 1 to 3; None where the data do not say.

    Args:
        root: A judge's folder.
        task_id: One of its tasks.
    """
    try:
        text = (root / "data" / "tasks" / task_id / "ground_truth" / "metadata.json").read_text(encoding="utf-8")
        return int(json.loads(text)["difficulty"])
    except (OSError, KeyError, TypeError, ValueError):
        return None


def check_root(root: Path, counts: Mapping[str, int | None]) -> None:
    """Whether data are whole and of our version: the splits, and for each task what the engine and the evaluation read.

    Args:
        root: A judge's folder.
        counts: Split -> number of its tasks; None where any number but 0 will do.

    Raises:
        EHError: Something is missing or of another version; the message says what.
    """
    data = root / "data"
    for pattern in ("base_dbs/*.db", "api_docs/standard/*.json"):
        if not any(path.stat().st_size for path in data.glob(pattern)):
            raise EHError(f"the data are not whole: {data / pattern} is missing or empty")
    for split, count in counts.items():
        identifiers = _read_ids(root, split)
        if len(set(identifiers)) != (count or len(identifiers) or 1):
            raise EHError(
                f"the data are not whole: {split} lists {len(set(identifiers))} tasks, expected {count or 'some'}"
            )
        for identifier in identifiers:
            task = data / "tasks" / identifier
            for needed in ("specs.json", "dbs/supervisor.jsonl", "ground_truth/evaluation.py"):
                if not (task / needed).is_file():
                    raise EHError(f"the data are not whole: task {identifier} of {split} has no {needed}")
            version = json.loads((task / "specs.json").read_text(encoding="utf-8")).get("db_version")
            if version != DATA_VERSION:  # the engine would refuse the task
                raise EHError(
                    f"the data are of version {version}, expected {DATA_VERSION} (task {identifier} of {split})"
                )


def write_agent_root(judge: Path, agent: Path) -> None:
    """Makes the agent's folder from the judge's: hard links where the file system allows them, else copies.

    Only what is named here goes over, so that no file that tells an answer can slip through under a new name.
    """
    data = judge.resolve() / "data"
    for source in _agent_files(data):
        target = agent / "data" / source.relative_to(data)
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source.resolve(), target)
        except OSError:
            shutil.copyfile(source, target)


def _place(split: str) -> tuple[Path, Path | None, str]:
    """The judge's folder, the agent's if it is made by then, and the version; errors as for ``roots``."""
    if split not in SPLITS:
        raise ConfigError(f"split must be one of {', '.join(SPLITS)}, got {split!r}")
    if split == "mini":
        folder = mini_dir()
        if not folder.is_dir():
            raise MissingBackendError(
                f"AppWorld's mini world for this version of the project is not in {folder.parent}; "
                "run: python -m envs install appworld"
            )
        return folder / "judge", folder / "agent", folder.name
    given, folder = given_root(), benchmark_dir()
    if given is not None:
        return given, None, _version(given)
    if not folder.is_dir():
        told = os.environ.get("APPWORLD_ROOT")
        nothing = f"APPWORLD_ROOT is {told!r}, which holds no data/tasks, and " if told else ""
        raise MissingBackendError(
            f"{nothing}AppWorld's benchmark (split {split!r}) is not in {folder.parent}; where the network allows it, run: "
            "python -m envs install appworld; or set EH_APPWORLD_DATA_URL to a mirror or to a file for it, or APPWORLD_ROOT "
            "to a folder that holds AppWorld's data; split 'mini' needs none of this"
        )
    return folder / "judge", folder / "agent", _version(folder / "judge")


def _agent_files(data: Path) -> Iterator[Path]:
    patterns = ["version.txt", "datasets/*.txt", "base_dbs/*", "api_docs/*/*.json"]
    patterns += ["tasks/*/specs.json", "tasks/*/dbs/*"]
    return (path for pattern in patterns for path in sorted(data.glob(pattern)) if path.is_file())


def _agent_of(given: Path) -> Path:
    """The agent's half of a folder that is not ours, in the cache; another one when a file that goes into it has changed."""
    if given in _made:
        return _made[given]
    digest = hashlib.sha256(str(given).encode())
    for path in _agent_files(given / "data"):
        status = path.stat()
        digest.update(f"{path}\0{status.st_size}\0{status.st_mtime_ns}\0".encode())
    folder = runtime.cache_dir() / "appworld" / f"given-{digest.hexdigest()[:16]}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        try:
            write_agent_root(given, building / "agent")
            os.rename(building, folder)
        except OSError:
            if not folder.is_dir():  # another process was faster
                raise
        finally:
            shutil.rmtree(building, ignore_errors=True)
    _made[given] = folder / "agent"
    return _made[given]


def _version(root: Path) -> str:
    path = root / "data" / "version.txt"
    return f"benchmark-{path.read_text(encoding='utf-8').strip() if path.is_file() else 'unknown'}"


def _read_ids(root: Path, split: str) -> tuple[str, ...]:
    path = root / "data" / "datasets" / f"{split}.txt"
    if not path.is_file():
        return ()
    # AppWorld lets a line carry a tag after a colon.
    found = [line.strip().split(":")[0] for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    strange = [identifier for identifier in found if not _TASK_ID.fullmatch(identifier)]
    if strange:
        raise EHError(f"{path} lists {strange[0]!r}, which is no task's id")
    return tuple(found)
