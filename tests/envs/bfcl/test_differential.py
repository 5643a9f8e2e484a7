"""EH-BFCL against bfcl-eval's own runner and checker on randomly perturbed ground truth.

Every verdict and every result string must equal those of bfcl-eval without its two aliasing bugs (docs/bfcl.md); where
bfcl-eval as it is says otherwise, the episode must be one that those bugs can touch. EH_DIFFERENTIAL_EPISODES sets how
many episodes are played (default 320).
"""

import os
import random
import re

import pytest

from envs.bfcl.splits import CATEGORIES

EPISODES = int(os.environ.get("EH_DIFFERENTIAL_EPISODES", "320"))
BATCH = 40  # episodes of one parametrised case
FORMATS = ["python", "hermes", "native"]


@pytest.fixture(scope="module")
def tasks(bfcl_python):
    """task id -> (ground truth, documents), filled as needed."""
    return {}


@pytest.mark.parametrize("batch", range(max(1, EPISODES // BATCH)))
def test_verdicts_and_results_are_bfcl_evals(batch, make, play, upstream, isolated, tasks, perturbed):
    rng = random.Random(f"differential {batch}")
    envs = {action_format: make(action_format=action_format) for action_format in FORMATS}
    verdicts, aliased = [], 0
    for i in range(BATCH):
        task_id = f"multi_turn_{CATEGORIES[i % 4]}_{rng.randrange(200)}"
        action_format = rng.choice(FORMATS)
        if task_id not in tasks:
            functions = upstream.call("entry", {"task_id": task_id})["functions"]
            tasks[task_id] = perturbed.expert_calls(envs["python"], task_id), functions
        steps = perturbed.perturb(rng, *tasks[task_id])
        script = perturbed.rendered(rng, steps, action_format)

        results, user, info, reward = play(envs[action_format], task_id, script)
        told = {"task_id": task_id, "script": script, "action_format": action_format}
        expected = isolated.call("play", told)
        assert info["success"] == expected["valid"], (task_id, script, info, expected["error_type"])
        assert reward == float(expected["valid"])
        assert results == [shown(step, action_format) for step in expected["results"]], (task_id, script)
        for ours, said in zip(user, expected["user"], strict=True):
            if reveals(said):  # the documents are in our own form there, and in "native" apart
                assert ours.endswith("I have updated some more functions you can choose from. What about now?")
            else:
                assert ours == said[0]["content"]
        verdicts.append(expected["valid"])

        as_it_is = upstream.call("play", told)
        if (as_it_is["valid"], as_it_is["results"]) != (expected["valid"], expected["results"]):
            assert perturbed.aliasing_can_matter(task_id, tasks[task_id][1]), (task_id, script)
            aliased += 1
    assert {True, False} == set(verdicts)  # else nothing was compared
    print(f"{len(verdicts)} episodes, {sum(verdicts)} successes, {aliased} that upstream's aliasing bugs touched")


def shown(results, action_format):
    # Upstream's own name differs each time.
    results = [re.sub(r"run\d+_\w+_instance", "_inst", result) for result in results]
    if action_format == "hermes":
        return "\n".join(f"<tool_response>\n{r}\n</tool_response>" for r in results)
    return "\n".join(results)


def reveals(said):
    return "I have updated some more functions" in said[0]["content"]
