"""EH-BFCL against bfcl-eval's own runner and checker on randomly perturbed ground truth.

Every verdict and every result string must equal those of bfcl-eval without its two aliasing bugs (docs/bfcl.md); where
bfcl-eval as it is says otherwise, the episode must be one that those bugs can touch. EH_DIFFERENTIAL_EPISODES sets how
many episodes are played (default 320).
"""

import ast
import copy
import json
import os
import random

import pytest

from envs.bfcl.splits import CATEGORIES

EPISODES = int(os.environ.get("EH_DIFFERENTIAL_EPISODES", "320"))
BATCH = 40  # episodes of one parametrised case
# Left out: Python's own functions, which upstream runs and we do not know (docs/bfcl.md).
NONSENSE = ["fly_to_moon", "exit", "kill", "remove", "os.remove", "GorillaFileSystem.ls", "_load_scenario"]
KINDS = ["drop", "double", "swap", "alter", "alter", "alter", "forget", "wrong", "nonsense", "extra", "extra", "empty"]
KINDS += ["move", "again"]
CHATTER = [
    "I am not sure.",
    "[]",
    "",
    "ls(",
    "[ls()",
    "<tool_call>\n{broken}\n</tool_call>",
    "f(a=1",
    "{}",
    "[3]",
    "None",
]


def expert_calls(env, task_id):
    """Ground truth as [turn][call] = (name, arguments), read off the expert's messages."""
    env.reset(options={"task_id": task_id})
    turns, done, info = [[]], False, {"turn": 0}
    while not done:
        action = env.unwrapped.expert()
        _, _, done, _, after = env.step(action)
        if after["calls"]:
            calls = ast.parse(action, mode="eval").body.elts
            turns[-1] += [(c.func.id, {k.arg: ast.literal_eval(k.value) for k in c.keywords}) for c in calls]
        elif not done:
            turns.append([])
        info = after
    assert info["success"], task_id
    return turns


def perturb(rng, turns, functions):
    """A script of [turn][step][call]; a step may also be a text without a call."""
    turns = copy.deepcopy(turns)
    names = [document["name"] for document in functions]
    free = [d["name"] for d in functions if not d["parameters"].get("required")]
    everything = [call for turn in turns for call in turn]
    for _ in range(rng.choice([0, 1, 1, 2, 3, 6])):
        turn = rng.choice(turns)
        other = rng.choice(turns)
        at = rng.randrange(len(turn)) if turn else None
        kind = rng.choice(KINDS)
        if kind == "extra" and free:
            turn.insert(rng.randint(0, len(turn)), (rng.choice(free), {}))
        elif kind == "again" and everything:
            turn.insert(rng.randint(0, len(turn)), rng.choice(everything))
        elif kind == "nonsense":
            turn.insert(rng.randint(0, len(turn)), (rng.choice(NONSENSE), rng.choice([{}, {"a": 1}])))
        elif kind == "empty" and rng.random() < 0.3:
            turn.clear()
        elif at is None:
            continue
        elif kind == "drop":
            del turn[at]
        elif kind == "double":
            turn.insert(at, turn[at])
        elif kind == "swap" and len(turn) > 1:
            turn[at - 1], turn[at] = turn[at], turn[at - 1]
        elif kind == "move":
            other.append(turn.pop(at))
        elif kind == "wrong":
            turn[at] = (rng.choice(names), turn[at][1])
        elif kind in ("alter", "forget") and turn[at][1]:
            name, arguments = turn[at]
            arguments = dict(arguments)
            key = rng.choice(list(arguments))
            if kind == "forget":
                del arguments[key]
            else:
                arguments[key] = alter(rng, arguments[key])
            turn[at] = (name, arguments)
    script = []
    for turn in turns:
        steps, rest = [], list(turn)
        several = rng.random() < 0.3
        while rest:
            size = rng.randint(1, 4) if several else 1
            steps.append(rest[:size])
            rest = rest[size:]
        if rng.random() < 0.05:
            steps.insert(rng.randint(0, len(steps)), rng.choice(CHATTER))  # ends the turn early
        if free and rng.random() < 0.03:
            steps[rng.randint(0, len(steps)) :] = [[(rng.choice(free), {})] for _ in range(rng.randint(17, 23))]
        script.append(steps)
    return script


def alter(rng, value):
    if isinstance(value, bool):
        return rng.choice([not value, None, "yes"])
    if isinstance(value, (int, float)):
        return rng.choice([value + 1, -value, value / 2, str(value), 0, [value]])
    if isinstance(value, str):
        return rng.choice([value + "x", value.upper(), "", value[:-1], value + " (draft)", 'it\'s "q" \\ é\n', 5, None])
    if isinstance(value, list) and value:
        return rng.choice([value[::-1], value[:-1], value + value[:1], [], value[0]])
    return rng.choice([None, [], {"a": 1}])


def render(rng, step, action_format):
    if isinstance(step, str):
        return step
    if action_format == "hermes":
        blocks = [json.dumps({"name": name, "arguments": arguments}) for name, arguments in step]
        text = "\n".join(f"<tool_call>\n{block}\n</tool_call>" for block in blocks)
        return rng.choice(["", "", "", "<think>a <tool_call>\n</think>\n", "Sure.\n"]) + text
    calls = [f"{name}({', '.join(f'{k}={v!r}' for k, v in arguments.items())})" for name, arguments in step]
    if rng.random() < 0.05:
        calls[0] = calls[0].replace("(", "('positional', ", 1).replace(", )", ")")
    brackets = rng.choice(["[{}]", "[{}]", "[{}]", "{}", "```{}```", " [{}]\n"])
    return brackets.format(", ".join(calls))


def aliasing_can_matter(task_id, functions):
    names = {document["name"] for document in functions}
    return "post_tweet" in names or ("long_context" in task_id and "book_flight" in names)


@pytest.fixture(scope="module")
def tasks(bfcl_python):
    """task id -> (ground truth, documents), filled as needed."""
    return {}


@pytest.mark.parametrize("batch", range(max(1, EPISODES // BATCH)))
def test_verdicts_and_results_are_bfcl_evals(batch, make, play, upstream, isolated, tasks):
    rng = random.Random(f"differential {batch}")
    envs = {action_format: make(action_format=action_format) for action_format in ("python", "hermes")}
    verdicts, aliased = [], 0
    for i in range(BATCH):
        task_id = f"multi_turn_{CATEGORIES[i % 4]}_{rng.randrange(200)}"
        action_format = rng.choice(["python", "hermes"])
        if task_id not in tasks:
            functions = upstream.call("entry", {"task_id": task_id}, timeout_s=60)["functions"]
            tasks[task_id] = expert_calls(envs["python"], task_id), functions
        steps = perturb(rng, *tasks[task_id])
        script = [[render(rng, step, action_format) for step in turn] for turn in steps]

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
            assert aliasing_can_matter(task_id, tasks[task_id][1]), (task_id, script)
            aliased += 1
    assert {True, False} == set(verdicts)  # else nothing was compared
    print(f"{len(verdicts)} episodes, {sum(verdicts)} successes, {aliased} that upstream's aliasing bugs touched")


def shown(results, action_format):
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


def test_shared_credit_cards_hide_a_purchase_from_upstream_and_not_from_us(make, play, upstream, isolated, tasks):
    """Aliasing bug 2: in long_context, the model and the ground truth pay with the very same credit cards."""
    task_id = "multi_turn_long_context_151"
    env = make()
    turns = expert_calls(env, task_id)
    insurance = {
        "access_token": "abc123xyz",
        "insurance_type": "comprehensive",
        "insurance_cost": 120.0,
        "booking_id": "3426812",
        "card_id": "1234567812345678",  # one of the cards that long_context adds
    }
    turns[0].append(("purchase_insurance", insurance))
    script = [[render(random.Random(0), [call], "hermes") for call in turn] for turn in turns]
    told = {"task_id": task_id, "action_format": "hermes", "script": script}
    results, _, info, reward = play(make(action_format="hermes"), task_id, script)
    assert '"insurance_status": true' in results[len(turns[0]) - 1]
    assert upstream.call("play", told, timeout_s=60)["valid"] is True
    assert isolated.call("play", told, timeout_s=60)["valid"] is False
    assert (reward, info["failure"]) == (0.0, {"turn": 0, "kind": "wrong_state"})
