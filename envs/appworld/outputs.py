"""Turns recorded episodes into AppWorld's experiment outputs, for ``appworld evaluate`` and ``appworld pack``.

Each episode is played again in a new world, and AppWorld's engine writes the state that results.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from eh_gym.errors import ConfigError, WorkerError
from envs.appworld import data
from envs.appworld.actions import code_of, refusal_of
from envs.appworld.hosts import Host, Settings, TaskWorld, shared_host
from envs.backends import backend_python


@dataclass(frozen=True)
class Replayed:
    """The verdict on an episode that was played again. An episode that was not ``completed`` is a failure."""

    success: bool
    completed: bool


class OutputWriter:
    """Writes the episodes of one experiment. Make it with `output_writer`."""

    def __init__(self, folder: Path, host: Host) -> None:
        self._folder, self._host = folder, host

    def write(self, task_id: str, actions: Sequence[str]) -> Replayed:
        turns: list[tuple[str, str]] = []
        while True:
            world = self._host.open(task_id, record=True)
            try:
                completed = _play(world, actions, turns)
                world.save(self._folder / "tasks" / task_id, turns)  # before the evaluation, which may change records
                return Replayed(bool(world.verdict()["success"]), completed)
            except WorkerError:
                if world.host_failed or not actions:
                    raise
                actions = ()  # the code destroyed its world: save the start state
            finally:
                world.close()


def _play(world: TaskWorld, actions: Sequence[str], turns: list[tuple[str, str]]) -> bool:
    completed = False
    for action in actions:
        if refusal := refusal_of(action):
            turns.append((action, refusal))
            continue
        code = code_of(action)
        result = world.execute(code)
        turns.append((code, result["output"]))
        completed = completed or bool(result["completed"])
    return completed


def output_writer(root: Path, experiment: str, split: str, settings: Settings) -> OutputWriter:
    """Makes a writer for one experiment.

    Args:
        root: AppWorld's root. The outputs go to ``experiments/outputs/EXPERIMENT`` there. If it has no folder ``data``,
            a link to the split's data is made.
        experiment: The experiment's name, such as ``my-agent_test_normal``.
        split: The split of the tasks.
        settings: The limits under which the episodes were played.
    """
    source = data.root_of(split)
    root = root.resolve()
    try:
        root.mkdir(parents=True, exist_ok=True)
        if not (root / "data").exists():
            (root / "data").symlink_to(source / "data", target_is_directory=True)
    except OSError as error:
        raise ConfigError(f"the folder {root} can't be used ({error.strerror}); give another --out") from error
    python = backend_python("appworld")
    return OutputWriter(root / "experiments" / "outputs" / experiment, shared_host(python, source, settings))
