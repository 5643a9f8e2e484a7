"""Would it pay to end the episodes of a group early if none of them has succeeded? Counted on the recorded episodes of a sweep.

    python benchmarks/early_end.py --sweep runs/EH-CabinetOpenEnded-v0 runs/EH-Cabinet-v0

A group that has no success by some step is stopped there. "Saved" is the share of all tokens after the first prompts that this
saves. "Lost" is the share of the groups with different rewards that would then teach nothing. The last number is how many more
such groups a token buys: (1 - lost) / (1 - saved). What the agent would have learned otherwise is not counted.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from flags import command, new_parser, parse, run

from harness.experiments.manifest import read_manifest
from harness.run.episode_log import read_episodes


class Episode(NamedTuple):
    """The tokens of each step of an episode, and whether it succeeded."""

    steps: list[int]
    success: bool


Group = list[Episode]


def recorded(folder: Path) -> Iterator[Group]:
    """The groups of every update of a run whose episodes were logged."""
    for log in sorted(folder.glob("episodes/update-*.jsonl")):
        groups: dict[int, Group] = defaultdict(list)
        for said in read_episodes(log):
            if said["end"] != "environment-error":
                steps = [turn["action_tokens"] + turn["observation_tokens"] for turn in said["turns"]]
                groups[said["group"]].append(Episode(steps, said["success"]))
        yield from groups.values()


def drawn() -> Iterator[Group]:
    """Groups that mean nothing, for --smoke."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        yield [Episode([7] * int(rng.integers(3, 50)), bool(rng.random() < 0.5)) for _ in range(8)]


def stopped_at(groups: Sequence[Group], step: int) -> tuple[float, float]:
    """The share of the tokens that is saved, and the share of the useful groups that is lost."""
    every = saved = useful = lost = 0
    for group in groups:
        every += sum(sum(episode.steps) for episode in group)
        mixed = len({episode.success for episode in group}) > 1
        useful += mixed
        if not any(episode.success and len(episode.steps) <= step for episode in group):
            saved += sum(sum(episode.steps[step:]) for episode in group)
            lost += mixed
    return saved / max(1, every), lost / max(1, useful)


def main() -> None:
    """Prints a row for each arm of each sweep."""
    parser = new_parser(__doc__)
    parser.add_argument("--sweep", type=Path, nargs="+", default=[], help="folders of harness.sweep --suite learning")
    parser.add_argument("--steps", type=int, nargs="+", default=[12, 18, 24, 30])
    args = parse(parser)
    arms: dict[str, list[Group]] = {"drawn": list(drawn())} if args.smoke else {}
    for sweep in args.sweep:
        manifest = read_manifest(sweep / "suites" / "learning.json")
        for label, _, runs in manifest.arms:
            arms[f"{manifest.env} {label}"] = [group for folder in runs.values() for group in recorded(folder)]
    print(command())
    print(
        "saved %, lost %, and groups that teach something per token, if a group without success is stopped at this step"
    )
    print(f"{'':<40}{'groups':>7}" + "".join(f"{step:>22}" for step in args.steps))
    for name, groups in arms.items():
        if groups:
            found = [stopped_at(groups, step) for step in args.steps]
            cells = [f"{100 * saved:.1f} {100 * lost:.1f} {(1 - lost) / (1 - saved):.2f}" for saved, lost in found]
            print(f"{name:<40}{len(groups):>7}" + "".join(f"{cell:>22}" for cell in cells))


if __name__ == "__main__":
    run(main)
