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


@pytest.fixture(scope="module")
def tasks(bfcl_python):
    """task id -> (ground truth, documents), filled as needed."""
    return {}


@pytest.mark.parametrize("batch", range(max(1, EPISODES // BATCH)))
def test_verdicts_and_results_are_bfcl_evals(batch, make, play, upstream, isolated, tasks, perturbed):
    rng = random.Random(f"differential {batch}")
    envs = {action_format: make(action_format=action_format) for action_format in ("python", "hermes")}
    verdicts, aliased = [], 0
    for i in range(BATCH):
        task_id = f"multi_turn_{CATEGORIES[i % 4]}_{rng.randrange(200)}"
        action_format = rng.choice(["python", "hermes"])
        if task_id not in tasks:
            functions = upstream.call("entry", {"task_id": task_id}, timeout_s=60)["functions"]
            tasks[task_id] = perturbed.expert_calls(envs["python"], task_id), functions
        steps = perturbed.perturb(rng, *tasks[task_id])
        script = [[perturbed.render(rng, step, action_format) for step in turn] for turn in steps]

        results, user, info, reward = play(envs[action_format], task_id, script)
        told = {"task_id": task_id, "script": script, "action_format": action_format}
        expected = isolated.call("play", told, timeout_s=60)
        assert info["success"] == expected["valid"], (task_id, script, info, expected["error_type"])
        assert reward == float(expected["valid"])
        assert results == [shown(step, action_format) for step in expected["results"]], (task_id, script)
        for ours, said in zip(user, expected["user"], strict=True):
            if reveals(said):  # the documents are in our own form there
                assert ours.endswith("\nI have updated some more functions you can choose from. What about now?")
            else:
                assert ours == said[0]["content"]
        verdicts.append(expected["valid"])

        as_it_is = upstream.call("play", told, timeout_s=60)
        if (as_it_is["valid"], as_it_is["results"]) != (expected["valid"], expected["results"]):
            assert perturbed.aliasing_can_matter(task_id, tasks[task_id][1]), (task_id, script)
            aliased += 1
    assert {True, False} == set(verdicts)  # else nothing was compared
    print(f"{len(verdicts)} episodes, {sum(verdicts)} successes, {aliased} that upstream's aliasing bugs touched")


@pytest.mark.parametrize("action_format", ["hermes", "native"])
@pytest.mark.parametrize("task_id", ["multi_turn_base_0", "multi_turn_base_2", "multi_turn_base_120"])
def test_every_spelling_of_a_call_has_bfcl_evals_verdict(action_format, task_id, make, play, isolated, perturbed):
    """The right call in other spellings, of which Python or upstream's rewriting refuses some."""
    env, turns = make(action_format=action_format), perturbed.expert_calls(make(), task_id)
    name, arguments = call = turns[0][0]
    spellings = perturbed.spellings(*call)
    spellings["a call of the result"] = f"{name}()", arguments
    spellings["stars in a keyword"] = name, {f"a={{**1}}, {next(iter(arguments))}": 1}
    verdicts = {}
    for what, spelled in spellings.items():
        steps = [[spelled, *turns[0][1:]], *turns[1:]]
        script = [[perturbed.render(random.Random(0), [call], action_format) for call in turn] for turn in steps]
        results, _, info, _ = play(env, task_id, script)
        told = {"task_id": task_id, "script": script, "action_format": action_format}
        theirs = isolated.call("play", told, timeout_s=60)
        verdicts[what] = info["success"]
        assert info["success"] == theirs["valid"], (what, results[0])
        if action_format == "hermes" and what != "stars in a keyword":
            assert results == [shown(step, action_format) for step in theirs["results"]], what
    assert sum(verdicts.values()) == 4, verdicts
    assert len(verdicts) == 21


def shown(results, action_format):
    results = [
        re.sub(r"run\d+_\w+_instance", "_inst", result) for result in results
    ]  # upstream's own name differs each time
    if action_format == "hermes":
        return "\n".join(f"<tool_response>\n{r}\n</tool_response>" for r in results)
    return "\n".join(results)


def reveals(said):
    return "I have updated some more functions" in said[0]["content"]


def test_a_mutable_default_pollutes_upstream_and_not_us(make, play, upstream, isolated):
    """Aliasing bug 1: mention() extends the process-wide default list of post_tweet(mentions=[])."""
    task_id = "multi_turn_base_90"
    entry = upstream.call("entry", {"task_id": task_id}, timeout_s=60)
    user = entry["initial_config"]["TwitterAPI"]
    login = f"[authenticate_twitter(username={user['username']!r}, password={user['password']!r})]"
    post = "[post_tweet(content='hello')]"
    mention = f"[mention(tweet_id={user['tweet_counter']}, mentioned_usernames=['@anna'])]"
    script = [[login, post, mention], *([] for _ in entry["ground_truth"][1:])]
    told = {"task_id": task_id, "action_format": "python", "script": script}

    env = make()
    ours = [play(env, task_id, script)[0] for _ in range(2)]
    as_it_is = [upstream.call("play", told, timeout_s=60)["results"] for _ in range(2)]
    clean = [isolated.call("play", told, timeout_s=60)["results"] for _ in range(2)]
    assert ours[0] == ours[1] == [result for [result] in clean[0]] == [result for [result] in clean[1]]
    assert '"mentions": []' in ours[1][1]
    assert '"mentions": ["@anna"' in as_it_is[1][1][0]  # the second episode begins with the first one's mention


def test_shared_credit_cards_hide_a_purchase_from_upstream_and_not_from_us(
    make, play, upstream, isolated, tasks, perturbed
):
    """Aliasing bug 2: in long_context, the model and the ground truth pay with the very same credit cards."""
    task_id = "multi_turn_long_context_151"
    env = make()
    turns = perturbed.expert_calls(env, task_id)
    insurance = {
        "access_token": "abc123xyz",
        "insurance_type": "comprehensive",
        "insurance_cost": 120.0,
        "booking_id": "3426812",
        "card_id": "1234567812345678",  # one of the cards that long_context adds
    }
    turns[0].append(("purchase_insurance", insurance))
    script = [[perturbed.render(random.Random(0), [call], "hermes") for call in turn] for turn in turns]
    told = {"task_id": task_id, "action_format": "hermes", "script": script}
    results, _, info, reward = play(make(action_format="hermes"), task_id, script)
    assert '"insurance_status": true' in results[len(turns[0]) - 1]
    assert upstream.call("play", told, timeout_s=60)["valid"] is True
    assert isolated.call("play", told, timeout_s=60)["valid"] is False
    assert (reward, info["failure"]) == (0.0, {"turn": 0, "kind": "wrong_state"})
