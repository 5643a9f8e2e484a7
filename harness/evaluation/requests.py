"""The episodes of an evaluation, each with the seed that identifies it."""

from collections.abc import Sequence

from harness.types.request import EpisodeRequest
from harness.types.seeding import derive_seed


def evaluation_requests(task_ids: Sequence[str], rollouts: int, seed: int) -> list[EpisodeRequest]:
    return [
        EpisodeRequest(task_id, group, episode_seed(seed, task_id, member))
        for group, task_id in enumerate(task_ids)
        for member in range(rollouts)
    ]


def episode_seed(seed: int, task_id: str, rollout: int) -> int:
    return derive_seed(seed, "evaluate", task_id, rollout)
