"""EH-Tau2 beside tau2's own in CPU ms, and what scripts win.

python benchmarks/tau2.py > benchmarks/results/tau2-cpu.txt
"""

import gc
import importlib
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def one_process(tasks: int) -> None:
    """Plays the expert's episodes."""
    package: Any = types.ModuleType("eh_backend")
    package.__path__ = [str(ROOT / "envs" / "tau2" / "backend")]
    sys.modules["eh_backend"] = package
    sys.path[0] = str(ROOT / "tests" / "envs" / "tau2")  # this folder has a tau2, too
    tau2, ours = importlib.import_module("official"), importlib.import_module("eh_backend.worker")
    spent: dict[str, list[float]] = {}
    gc.freeze()  # what the imports left is in no reset

    def timed(what: str, do: Any, *arguments: Any) -> Any:
        begin = time.process_time()
        result = do(*arguments)
        spent.setdefault(what, []).append(1000 * (time.process_time() - begin))
        return result

    def reset(task: Any) -> Any:
        world, start = tau2.constructor(solo_mode=True), task.initial_state
        world.set_state(start.initialization_data, start.initialization_actions, [])
        return world

    def step(world: Any, messages: list[Any], call: Any) -> None:
        call = tau2.ToolCall(id=str(len(messages)), name=call[0], arguments=call[1])
        messages += [tau2.AssistantMessage(role="assistant", tool_calls=[call]), world.get_response(call)]

    for name in tau2.environment.get_tasks_split()["base"][:tasks]:
        episode = timed("reset, ours", ours._Episode, name, "none", "full", "calls")
        task, run = tau2.TASKS[name], types.SimpleNamespace(messages=[], termination_reason="agent_stop")
        world = timed("reset, tau2", reset, task)
        while (action := episode.action("expert", 0.0)) != "done()":
            timed("step, ours", episode.step, action)
            timed("step, tau2", step, world, run.messages, ours.read_text(action, ours._PARAMETERS)[0])
        assert timed("verdict, ours", episode.step, "done()")["success"]
        assert timed("verdict, tau2", tau2.verdict, task, run)
    for what, times in spent.items():
        print(f"{what:<14}{sum(times) / len(times):>8.2f}")


def main() -> None:
    """Prints both."""
    from flags import new_parser, parse, print_heading

    from envs.backends import backend_python, get_backend
    from harness import evaluate_policy

    parser = new_parser(__doc__)
    parser.add_argument("--tasks", type=int, default=114, help="base tasks")
    args = parse(parser, tasks=2)
    print_heading(**get_backend("tau2").requirements)
    print(flush=True)
    subprocess.run([backend_python("tau2"), __file__, "--one-process", str(args.tasks)], check=True)
    print()
    for player in ("nothing", "transfer", "blind", "expert"):
        for split in ("base", "test"):
            result = evaluate_policy(player, "EH-Tau2-v0", split=split, show=False)
            kinds = ", ".join(f"{part.name} {part.mean_at_k:.3f} of {part.tasks}" for part in result.parts)
            lengths = result.success_lengths or (0,)
            middle = ", ".join(str(lengths[int(share * (len(lengths) - 1))]) for share in (0.1, 0.5, 0.9, 1))
            scored = f"{result.successes}/{result.episodes}: {kinds}"
            print(f"{player:<9}{split} {scored}; steps P10, P50, P90, max {middle}")


if __name__ == "__main__":
    if "--one-process" in sys.argv:
        one_process(int(sys.argv[2]))
    else:
        from flags import run

        run(main)
