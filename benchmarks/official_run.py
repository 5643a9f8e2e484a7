"""BFCL's whole official set with a model that answers at once: what environment and bookkeeping cost.

    python -m envs install bfcl && python benchmarks/official_run.py > benchmarks/results/official-run-cpu.txt
    python benchmarks/official_run.py --smoke

The expert plays all 800 entries first, with BFCL's own prompt. Then a model that repeats its messages plays them, in the way that
an endpoint is played with, and every episode is kept in a folder. Processor time counts this process and BFCL's workers.
"""

from __future__ import annotations

import resource
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from flags import command, new_parser, parse
from flags import run as run_benchmark
from rich.console import Console

from eh_gym.worker import close_shared_pools
from harness.evaluate import Evaluation, run
from harness.evaluation.endpoint import EndpointReply, Usage
from harness.evaluation.folder import EvaluationFolder, read_evaluation
from harness.evaluation.play_endpoint import play_with_endpoint
from harness.evaluation.requests import evaluation_requests
from harness.evaluation.result import summarise
from harness.rollout.environment import Environments, make_environment, tasks_of
from harness.run.episode_log import read_episodes
from harness.run.versions import cpu_name
from harness.types.seeding import derive_seed

ENV, ARGS, HORIZON, SLOTS = "EH-BFCL-v0", '{"prompt": "official"}', 200, 64


class Repeats:
    """Answers each turn with the message that was logged for it."""

    url, max_tokens, overflow = "no address", 1024, ""

    def __init__(self, log: Path) -> None:
        self.usage = Usage()
        self._said = {
            derive_seed(line["seed"], "turn", number): turn["action"]
            for line in read_episodes(log)
            for number, turn in enumerate(line["turns"])
        }

    async def __aenter__(self) -> Repeats:
        return self

    async def __aexit__(self, *_: object) -> None:
        pass

    async def reply(self, messages: Sequence[Any], *, seed: int, **_: Any) -> EndpointReply:
        """Returns the message of the turn that has this seed."""
        return EndpointReply(self._said[seed], cut=False)


def processor_s() -> float:
    """The processor time of this process and of its children that have ended, in seconds."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in used)


def main() -> None:
    """Plays, and prints the times."""
    parser = new_parser(__doc__)
    parser.add_argument("--entries", type=int, help="play so many entries; by default all 800")
    entries = parse(parser, entries=4).entries
    print(command(), flush=True)
    with tempfile.TemporaryDirectory() as folder:
        expert, out = Path(folder, "expert"), Path(folder, "out")
        run(
            Evaluation(
                env=ENV, env_args=ARGS, policy="expert", split="all", tasks=entries, horizon=HORIZON, out=expert
            ),
            Console(quiet=True),
        )
        close_shared_pools()
        model = Repeats(read_evaluation(expert).episodes)

        began, used = time.perf_counter(), processor_s()
        args = {"split": "all", "prompt": "official", "workers": 2}
        env = make_environment(ENV, args)
        requests = evaluation_requests(tasks_of(env)[:entries], 1, 0)
        kept = EvaluationFolder(out, {"env": ENV})
        environments = Environments(ENV, args, SLOTS, SLOTS)
        played, _ = play_with_endpoint(lambda: model, environments, requests, horizon=HORIZON, on_end=kept.add)  # type: ignore[arg-type, return-value]
        kept.close()
        result = summarise(played)
        wall = time.perf_counter() - began
        close_shared_pools()  # the processor time of children counts when they have ended
        print(
            f"{cpu_name()}\n"
            f"{result.episodes} entries, {sum(t.length for t in played):,} steps, {100 * result.mean_at_k:.1f} % solved\n"
            f"{processor_s() - used:.1f} s of processor time, {wall:.1f} s in all\n"
            f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB in this process, "
            f"{resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024:.0f} MiB in the largest worker, "
            f"{sum(path.stat().st_size for path in out.rglob('*') if path.is_file()) / 2**20:.0f} MiB of log"
        )


if __name__ == "__main__":
    run_benchmark(main)
