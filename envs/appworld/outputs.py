"""Turns recorded episodes into AppWorld's experiment outputs, for ``appworld evaluate`` and ``appworld pack``.

An episode's actions run once more in a confined world, which records their API calls. A judge gives its verdict on these calls,
and AppWorld's plain engine makes them again and writes the state that they leave.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from eh_gym.errors import ConfigError, EHError, WorkerError
from eh_gym.worker import Worker, backend_command
from envs.appworld import data
from envs.appworld.actions import code_of, refusal_of
from envs.appworld.hosts import Host, Settings, shared_host
from envs.backends import backend_python

__all__ = ["OutputWriter", "Replayed", "output_writer"]

_WRITE_TIMEOUT_S = 600.0


@dataclass(frozen=True)
class Replayed:
    """One episode, played again: the judge's verdict on its state, and whether the agent completed its task.

    An episode that was not completed counts as a failure in the environment, whatever the verdict.
    """

    success: bool
    completed: bool


class OutputWriter:
    """Writes the episodes of one experiment; use `output_writer`."""

    def __init__(self, root: Path, experiment: str, host: Host, worker: Worker) -> None:
        self._root, self._experiment, self._host, self._worker = root, experiment, host, worker

    def write(self, task_id: str, actions: Sequence[str]) -> Replayed:
        """Plays the actions of an episode again and writes its outputs.

        Args:
            task_id: The task.
            actions: The agent's messages.

        Raises:
            WorkerError: There was no world, or no verdict.
            EHError: The outputs can't be written.
        """
        world, turns, completed = self._host.open(task_id), [], False
        try:
            for action in actions:
                if refusal := refusal_of(action):  # the environment did not run it either
                    turns.append((action, refusal))
                    continue
                code = code_of(action)
                try:
                    result = world.execute(code)
                except WorkerError:
                    if world.host_failed:
                        raise
                    break  # the code has destroyed its world, and what it did before counts
                turns.append((code, result["output"]))
                completed = completed or bool(result["completed"])
            success = bool(world.verdict()["success"])
            made = world.calls  # a judge has made them, so they are well-formed
        finally:
            world.close()
        episode = {"task_id": task_id, "calls": made, "turns": turns}
        params = {"root": str(self._root), "experiment": self._experiment, **episode}
        error = self._worker.call("write", params, timeout_s=_WRITE_TIMEOUT_S)
        if error:
            raise EHError(f"AppWorld could not write the outputs of the task {task_id}: {error}")
        return Replayed(success, completed)


@contextmanager
def output_writer(root: Path, experiment: str, split: str, settings: Settings) -> Iterator[OutputWriter]:
    """Makes a writer for one experiment.

    Args:
        root: What AppWorld calls its root. The outputs are in ``experiments/outputs/EXPERIMENT`` there. If it has no folder
            ``data``, it gets a link to the data of the split.
        experiment: The name of the experiment, such as ``my-agent_test_normal``.
        split: The split of the tasks.
        settings: What the worlds may do, as when the episodes were played.

    Raises:
        ConfigError: There is no such split, or the folder can't be made.
        MissingBackendError: AppWorld or the split's data are not installed.
    """
    roots = data.roots(split)
    root = root.resolve()
    try:
        root.mkdir(parents=True, exist_ok=True)
        if not (root / "data").exists():
            (root / "data").symlink_to(roots.judge / "data", target_is_directory=True)
    except OSError as error:
        raise ConfigError(f"the folder {root} can't be used ({error.strerror}); give another --out") from error
    python = backend_python("appworld")
    host = shared_host(python, roots, settings)
    with Worker(backend_command(python, Path(__file__).parent / "backend" / "outputs.py")) as worker:
        yield OutputWriter(root, experiment, host, worker)
