"""Every metric that is logged, with its unit and formula, and the log: one JSON line an update, and TensorBoard.

The glossary is the only list: a name that is not in it is refused, and the documentation's table is made from it.
"""

from __future__ import annotations

import difflib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eh_gym.errors import ConfigError, StateError
from harness.run.files import write_whole
from harness.types.trajectory import LENGTH_BINS

__all__ = ["GLOSSARY", "Metric", "MetricsLog", "glossary_markdown", "read_metrics"]


@dataclass(frozen=True)
class Metric:
    """One logged number."""

    name: str
    unit: str
    formula: str


def _words(bin_name: str) -> str:
    """What a bin's name says: steps_11_20 is 11 to 20 steps."""
    _, low, high = bin_name.split("_")
    return f"{low} steps or more" if high == "up" else f"{low} to {high} steps"


_ALL = (
    Metric("horizon/k", "steps", "the budget K that this update's episodes had"),
    Metric("horizon/k_mean", "steps", "mean K of this update's episodes, where some have a K of their own"),
    Metric("horizon/k_of", "steps", "with --horizon-key: `horizon/k_of/KIND`, the next K of the tasks of each kind"),
    Metric("horizon/k_real", "steps", "the controller's real-valued K after this update; the next K is made from it"),
    Metric("horizon/boundary", "steps", "the statistic (P90) of the remembered successes' lengths; none while too few"),
    Metric("horizon/target", "steps", "boundary + headroom, clipped to k_min..k_max; none while too few successes"),
    Metric("horizon/buffer_size", "successes", "how many lengths of successes the controller remembers"),
    Metric("rollout/success", "share", "episodes with the environment's verdict 1 / episodes"),
    Metric(
        "rollout/success_ceiling",
        "share",
        "episodes whose expert's steps fit into K / episodes, where known; a guess can be shorter",
    ),
    Metric("rollout/reward_mean", "reward", "mean of the episodes' summed rewards"),
    Metric(
        "rollout/truncated", "share", "episodes stopped by K, the environment's own limit or the context / episodes"
    ),
    Metric("rollout/length_mean", "steps", "mean steps of all episodes"),
    Metric("rollout/length_success_mean", "steps", "mean steps of the successes"),
    Metric("rollout/length_success_p90", "steps", "90th percentile of the successes' steps"),
    Metric(
        "rollout/steps_per_optimum",
        "ratio",
        "mean over successes of steps / the expert's steps, where known; a guess can be shorter",
    ),
    Metric("rollout/malformed", "share", "actions that are no valid call / actions"),
    Metric("rollout/action_cut", "share", "actions cut at max_action_tokens / actions"),
    Metric("rollout/environment_errors", "episodes", "lost to a failing environment; in no other figure"),
    Metric("rollout/environment_retries", "attempts", "begun again because the environment had failed"),
    Metric("rollout/context_overflows", "episodes", "ended because the context was full"),
    Metric("rollout/policy_lag", "updates", "mean over actions: policy updates that the sampler's weights were behind"),
    Metric("rollout/episodes", "episodes", "that count: all but those lost to a failing environment"),
    Metric("rollout/steps", "steps", "of all episodes together"),
    Metric("rollout/action_tokens", "tokens", "that the model wrote"),
    Metric("rollout/prompt_tokens", "tokens", "of prompts and observations"),
    Metric("tokens/update", "tokens", "action + prompt tokens of this update's episodes, each counted once"),
    Metric("tokens/total", "tokens", "sum of tokens/update so far"),
    Metric(
        "tokens/failed_attempts",
        "tokens",
        "action + prompt, of attempts lost to failing environments; not in tokens/update",
    ),
    Metric("train/loss", "nats", "the aggregated clipped loss, KL term included; mean over the optimizer steps"),
    Metric("train/entropy", "nats", "mean entropy of the distributions that the trained tokens were drawn from"),
    Metric("train/kl_ref", "nats", "mean k3 estimate of KL(policy || reference) over the trained tokens"),
    Metric(
        "train/approx_kl", "nats", "mean k3 estimate of KL(policy now || policy that sampled) over the trained tokens"
    ),
    Metric("train/clip_fraction", "share", "trained tokens whose gradient the clipping took away / trained tokens"),
    Metric("train/grad_norm", "norm", "of the gradient before clipping; mean over the optimizer steps"),
    Metric(
        "train/skipped_steps", "steps", "optimizer steps left out because the gradient was not finite; 0 in a sound run"
    ),
    Metric("train/lr", "rate", "the learning rate of this update"),
    Metric("train/zero_advantage_groups", "share", "groups whose rewards are all equal / groups"),
    Metric(
        "train/episodes_in_loss", "episodes", "with an advantage, or with --kl-coef any, and not left out as truncated"
    ),
    Metric("train/tokens_in_loss", "tokens", "that the model wrote in those episodes"),
    Metric(
        "train/logp_difference_max",
        "nats",
        "max |trainer's - sampler's log-probability| before the first step, over the tokens of that step; with tis_cap, "
        "of all steps",
    ),
    Metric("train/logp_difference_mean", "nats", "mean of the same"),
    *(
        Metric(f"train/logp_difference_{name}", "nats", f"mean of the same, in episodes of {_words(name)}")
        for name, _ in LENGTH_BINS
    ),
    Metric(
        "train/tis_weight_mean", "ratio", "mean min(trainer's / sampler's probability, tis_cap) of the trained tokens"
    ),
    Metric("train/tis_capped", "share", "trained tokens whose weight is tis_cap / trained tokens"),
    *(
        Metric(f"train/tis_capped_{name}", "share", f"the same, in episodes of {_words(name)}")
        for name, _ in LENGTH_BINS
    ),
    Metric(
        "evaluation/mean_at_k", "share", "successful episodes on held-out tasks at k_max, after this update / episodes"
    ),
    Metric("evaluation/best_at_k", "share", "of these tasks, those solved at least once / tasks"),
    Metric("time/rollout_s", "seconds", "of this update's rollout, in part before this update with async_steps"),
    Metric("time/train_s", "seconds", "of this update's policy update"),
    Metric("time/update_s", "seconds", "of this update in all"),
    Metric("time/total_s", "seconds", "of all updates so far, in this process and those it resumed; no evaluation"),
    Metric("time/evaluation_s", "seconds", "of the held-out evaluation after this update; in no other time"),
    Metric(
        "warm_start/loss", "nats", "cross-entropy per trained token, mean of the last 10 batches; shown, not logged"
    ),
    Metric("warm_start/steps", "batches", "that the warm start took; shown, not logged"),
)

GLOSSARY: dict[str, Metric] = {metric.name: metric for metric in _ALL}
"""Every metric by its name, or by the first two parts of a name that has three."""


def glossary_markdown() -> str:
    """The glossary as a table for the documentation."""
    rows = [f"| `{m.name}` | {m.unit} | {m.formula.replace('|', chr(92) + '|')} |" for m in _ALL]
    return "\n".join(["| metric | unit | what it is |", "| --- | --- | --- |", *rows])


class MetricsLog:
    """Appends metrics to ``metrics.jsonl`` and to TensorBoard.

    Args:
        run_dir: The run's folder.
        next_update: The first update that will be written; lines of it and later ones, left by a run that was killed
            after its last checkpoint, are cut off, and TensorBoard hides its points of them.

    Raises:
        StateError: The lines before `next_update` are not all there, or can't be read.
    """

    def __init__(self, run_dir: Path, next_update: int = 0) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._path = run_dir / "metrics.jsonl"
        kept = [row for row in read_metrics(self._path) if row["update"] < next_update] if self._path.exists() else []
        if len(kept) != next_update:
            raise StateError(
                f"{self._path} holds {len(kept)} updates before update {next_update}, where the checkpoint goes on; "
                "it was edited or belongs to another run"
            )
        write_whole(self._path, "".join(json.dumps(row) + "\n" for row in kept))
        self._file = self._path.open("a", encoding="ascii")
        self._board = SummaryWriter(str(run_dir / "tensorboard"), purge_step=next_update)

    def write(self, update: int, metrics: Mapping[str, float]) -> None:
        """Writes one update; it is on disk when this returns.

        Args:
            update: Its index.
            metrics: By name; what is NaN or infinite becomes null in the file and no point in TensorBoard.

        Raises:
            ConfigError: A name is not in the glossary; nothing is written.
        """
        for name in metrics:
            if "/".join(name.split("/", 2)[:2]) not in GLOSSARY:
                near = difflib.get_close_matches(name, GLOSSARY, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise ConfigError(f"metric {name!r} is not in the glossary (harness/run/metrics.py){hint}")
        row = {"update": update} | {k: float(v) if math.isfinite(v) else None for k, v in metrics.items()}
        self._file.write(json.dumps(row) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        for name, value in metrics.items():
            if math.isfinite(value):
                self._board.add_scalar(name, value, update)
        self._board.flush()  # a killed run's points before its checkpoint are not written again

    def close(self) -> None:
        """Closes both."""
        self._file.close()
        self._board.close()


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The rows of a ``metrics.jsonl``, in order; a last line that a killed run left unfinished is dropped.

    Raises:
        StateError: It can't be read, or another line is not a row of metrics.
    """
    rows: list[dict[str, Any]] = []
    try:
        content = path.read_bytes()
    except OSError as error:
        raise StateError(f"{path} can't be read ({error.strerror}); restore the file, or start a new run") from error
    whole = content.split(b"\n")[:-1]  # what follows the last newline is no whole line
    for number, line in enumerate(whole, start=1):
        try:
            row = json.loads(line)
            row["update"] = int(row["update"])
        except (ValueError, TypeError, KeyError) as error:
            raise StateError(
                f"line {number} of {path} is no row of metrics ({error!r}); restore the file, or start a new run"
            ) from error
        rows.append(row)
    return rows
