"""prompt="official": every text that the agent sees equals what bfcl-eval's own functions make."""

import json
import random

import pytest

from envs.bfcl.splits import CATEGORIES

SOME = [f"multi_turn_{category}_{index}" for category in CATEGORIES for index in (0, 55, 120, 199)]
CHATTER = "ls(", "[]", "<tool_call>\n{broken}\n</tool_call>"


def test_system_prompts_and_tools_are_upstream_s(make, upstream):
    envs = {name: make(action_format=name, prompt="official") for name in ("python", "hermes", "native")}
    tools = set()
    for task_id in [*SOME, *(f"multi_turn_base_{index}" for index in range(0, 200, 8))]:
        wanted = upstream.call("system_prompts", {"task_id": task_id})
        infos = {name: env.reset(options={"task_id": task_id})[1] for name, env in envs.items()}
        assert {name: info["system_prompt"] for name, info in infos.items()} == {**wanted, "native": ""}
        assert infos["native"]["tools"] == wanted["native"]
        tools |= {tool["function"]["name"] for tool in wanted["native"]}
    assert len(tools) > 100


@pytest.mark.parametrize("action_format", ["python", "hermes"])
def test_users_and_results_are_upstream_s(make, play, isolated, perturbed, action_format):
    env, plain = make(action_format=action_format, prompt="official"), make()
    revealed = 0
    for task_id in SOME:
        turns = perturbed.expert_calls(plain, task_id)
        script = [[perturbed.render(random.Random(0), [call], action_format) for call in turn] for turn in turns]
        script[0] += ["cd(folder='nowhere')", *CHATTER]  # an error, and messages without a call
        results, user, info, _ = play(env, task_id, script)
        episode = {"task_id": task_id, "script": script, "action_format": action_format}
        theirs = isolated.call("play", episode)
        assert user == [message[0]["content"] for message in theirs["user"]]
        revealed += sum("I have updated some more functions" in text for text in user)
        assert info["success"] == theirs["valid"]
        if action_format == "python":
            assert results == theirs["shown"]
        else:  # Qwen's template puts each result between tags
            tagged = (["<tool_response>\n" + r + "\n</tool_response>" for r in step] for step in theirs["results"])
            assert results == ["\n".join(step) for step in tagged]
    assert revealed == 4  # one in each entry of miss_func


def native_call(name, arguments):
    return json.dumps({"tool_calls": [{"function": {"name": name, "arguments": arguments}}]})


def answered(messages):
    """Upstream repeats calls that it can't read as they are, without a result. Strict servers refuse that, so here it
    differs."""
    found = []
    for message, following in zip(messages, [*messages[1:], {"role": "none"}], strict=True):
        calls = message.get("tool_calls", []) if following["role"] == "user" else []
        unread = [call for call in calls if not call["function"]["arguments"].endswith("}")]
        found.append(
            {**message, "tool_calls": [{**call, "function": {**call["function"], "arguments": "{}"}} for call in calls]}
            if unread
            else message
        )
        found += [
            {"role": "tool", "tool_call_id": call["id"], "content": "This call was not carried out."} for call in calls
        ]
    return found


def test_function_calling_sends_what_upstream_s_handler_sends(bfcl_python, make, isolated, perturbed, chat_server):
    pytest.importorskip("openai")
    from harness.evaluation.endpoint import ChatEndpoint
    from harness.evaluation.play_endpoint import play_with_endpoint
    from harness.evaluation.requests import evaluation_requests
    from harness.rollout.environment import Environments
    from harness.settings.evaluate import Endpoint
    from harness.settings.rollout import Rollout

    args = {"split": "all", "action_format": "native", "prompt": "official", "workers": 1}
    environments, plain = Environments("EH-BFCL-v0", args, slots=1, threads=1), make()
    rng, grown = random.Random("requests"), 0
    for task_id in SOME:
        script = perturbed.rendered(rng, perturbed.perturbed_task(rng, plain, isolated, task_id)[0], "native")
        script[0] += [native_call("cd", '{"folder": "nowhere"}'), native_call("cd", "{")]  # an error, and no call
        episode = {"task_id": task_id, "script": script, "action_format": "native"}
        theirs = isolated.call("play", episode)

        def answer(request, before, answers=theirs["answers"]):
            body = chat_server.completion(request, None)
            body["choices"][0]["message"] = answers[before]
            return {"body": body}

        with chat_server.serve(answer) as server:
            endpoint = Endpoint(base_url=server.url)
            asked = environments, evaluation_requests([task_id], 1, 0), Rollout()
            [ours] = play_with_endpoint(lambda at=endpoint: ChatEndpoint("m", at), *asked, horizon=200)
        sent = [{name: request[name] for name in ("messages", "tools")} for request in server.requests]
        assert sent == [{**request, "messages": answered(request["messages"])} for request in theirs["requests"]]
        assert ours.success == theirs["valid"]
        grown += len(sent[0]["tools"]) < len(sent[-1]["tools"])
    assert grown == 4  # in each entry of miss_func
