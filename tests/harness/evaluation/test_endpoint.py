"""`--policy openai`: episodes with a model behind a chat endpoint, here a server of the test's own."""

import json
import subprocess
import sys
import threading
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from rich.console import Console

from eh_gym.errors import ConfigError, SamplerError, UserCodeError, WorkerDied
from envs.cabinet.env import CabinetEnv
from harness.evaluation.play_endpoint import _EndpointPlayer, _Request
from harness.evaluation.result import Usage, result_table
from harness.evaluation.run import run
from harness.rollout.conversation import UNFINISHED
from harness.settings.evaluate import EvaluateConfig
from harness.settings.section import changed

pytest.importorskip("openai")


def quiet(url, **settings):
    defaults = {"policy": "openai", "base_url": url, "model": "cabinet-7b", "tasks": 4, "rollouts": 1, "slots": 2}
    return run(changed(EvaluateConfig(), **{**defaults, **settings}), Console(quiet=True))


def test_a_model_that_knows_the_task_solves_it(chat_server, tmp_path):
    with chat_server.serve(chat_server.cabinet_agent) as server:
        result = quiet(server.url, rollouts=2, out=tmp_path / "out")
    assert (result.tasks, result.rollouts, result.mean_at_k, result.steps_per_optimum) == (4, 2, 1.0, 1.0)
    steps = round(8 * result.length_mean)
    assert result.usage.requests == len(server.requests) == steps
    assert result.usage.completion_tokens == steps  # the server counts words, and a call is one
    prompts = sum(len(m["content"].split()) for request in server.requests for m in request["messages"])
    assert result.usage.prompt_tokens == prompts
    assert json.loads((tmp_path / "out" / "result.json").read_text())["result"]["usage"]["requests"] == steps


def test_counts_that_the_server_does_not_send_are_missing_and_not_0(chat_server):
    def answer(request, n):
        return {"body": chat_server.completion(request, "read()") | ({} if n else {"usage": None})}

    with chat_server.serve(answer) as server:
        result = quiet(server.url, tasks=1, horizon=3)
    assert result.usage == Usage(3, None, None)
    assert "not sent by the server" in result_table("", result).rows[-1][1]


def test_seeds_are_passed_on_and_do_not_depend_on_who_is_first(chat_server):
    def seeds(slots, seed):
        with chat_server.serve(chat_server.cabinet_agent) as server:
            told = {"temperature": 0.5, "max_action_tokens": 7, "chat_template_kwargs": '{"enable_thinking": false}'}
            quiet(server.url, slots=slots, rollouts=2, seed=seed, **told)
        sent = {
            "model": "cabinet-7b",
            "temperature": 0.5,
            "max_tokens": 7,
            "chat_template_kwargs": {"enable_thinking": False},
        }
        assert all(request | sent == request for request in server.requests)
        return sorted(request["seed"] for request in server.requests)

    alone = seeds(1, seed=0)
    assert alone == seeds(8, seed=0) != seeds(1, seed=1)
    assert len(set(alone)) == len(alone)
    assert all(0 <= seed < 2**31 for seed in alone)


def test_no_more_requests_at_once_than_slots(chat_server):
    both = threading.Barrier(2)

    def answer(request, before):
        if before < 2:
            both.wait(30)  # the first two can only be answered together
        return chat_server.cabinet_agent(request)

    with chat_server.serve(answer) as server:
        assert quiet(server.url, tasks=6, slots=2).mean_at_k == 1.0
    assert server.most_at_once == 2


def test_an_empty_message_and_a_cut_one_are_actions_and_half_a_surrogate_pair_is_sent_as_its_escape(chat_server):
    def answer(request, before):
        return {"body": chat_server.completion(request, None if before % 2 else "open(\ud83d", "length")}

    with chat_server.serve(answer) as server:
        assert quiet(server.url, tasks=1, horizon=4).length_mean == 4.0
    asked = server.requests[-1]["messages"]
    assert [message["content"] for message in asked[2::2]] == [r"open(\ud83d", "", r"open(\ud83d"]
    assert [message["role"] for message in asked] == ["system", *["user", "assistant"] * 3, "user"]


def test_an_endpoint_needs_no_torch(chat_server):
    code = (
        "import sys; from harness.evaluate import main; main(sys.argv[1:]); "
        "print(sorted(m for m in ('torch', 'transformers') if m in sys.modules))"
    )
    words = ["--policy", "openai", "--model", "m", "--tasks", "1", "--rollouts", "1"]
    with chat_server.serve(chat_server.cabinet_agent) as server:
        command = [sys.executable, "-c", code, "--base-url", server.url, *words]
        result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("status", [500, 400, 401])
def test_a_request_that_fails_for_good_fails_its_episode_and_no_reply_is_paid_twice(chat_server, tmp_path, status):
    def fails(request, before):
        return chat_server.error(status, "down") if before >= 30 else chat_server.cabinet_agent(request)

    settings = {"tasks": 12, "retries": 0, "slots": 1}
    with chat_server.serve(fails) as server:
        if status == 401:
            with pytest.raises(ConfigError, match=r"OPENAI_API_KEY.*same command again"):
                quiet(server.url, **settings, out=tmp_path)
        else:
            assert 0 < quiet(server.url, **settings, out=tmp_path).environment_errors < 12
    (tmp_path / "replies.jsonl").open("a").write('{"episode": 1\n')  # as a full disk may leave it
    asked = []
    for out in (tmp_path, None):
        with chat_server.serve(chat_server.cabinet_agent) as server:
            result = quiet(server.url, **settings, out=out)
        asked.append(len(server.requests))
        assert (result.episodes, result.mean_at_k) == (12, 1.0)
    assert 30 + asked[0] == asked[1]
    assert not (tmp_path / "replies.jsonl").exists()


def test_a_refused_key_names_the_variable(chat_server, monkeypatch):
    monkeypatch.setenv("MY_KEY", "sk-wrong")
    with chat_server.serve(lambda *_: chat_server.error(401, "Incorrect API key provided: sk-wrong")) as server:
        with pytest.raises(ConfigError, match=r"Incorrect API key provided: KEY.*MY_KEY"):
            quiet(server.url, api_key_env="MY_KEY", slots=1)
        assert server.headers[0]["authorization"] == "Bearer sk-wrong"
        assert len(server.requests) == 2  # then a plain one
    for name in ("MY_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(ConfigError, match="no key in the environment variable MY_KEY"):
        quiet("", api_key_env="MY_KEY")  # OpenAI's own server needs one


def test_a_server_that_hangs_meets_the_deadline(chat_server):
    over = threading.Event()

    def answer(request, before):
        over.wait(60)
        return "list()"

    with chat_server.serve(answer) as server:
        try:
            with pytest.raises(SamplerError, match=r"--base-url.*--deadline-s"):
                quiet(server.url, deadline_s=0.2, retries=1)
        finally:
            over.set()


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("context_length_exceeded", "Your messages resulted in 9000 tokens."),
        (None, "the request exceeds the available context size, try increasing it"),
        (None, "The input (90 tokens) is longer than the model's context length (64 tokens)."),
    ],
)
def test_a_full_context_ends_the_episode_as_truncated(chat_server, code, message):
    def answer(request, before):
        full = len(request["messages"]) > 2 + 2 * 5
        return chat_server.error(400, message, code=code) if full else chat_server.cabinet_agent(request)

    with chat_server.serve(answer) as server:
        result = quiet(server.url, tasks=12)
    assert 0 < result.successes < 12
    assert result.truncated == pytest.approx(1 - result.successes / 12)
    assert result.length_success_p90 <= 6
    assert result.usage.requests == round(12 * result.length_mean)  # an overflow is no answer
    with (
        chat_server.serve(lambda *_: chat_server.error(400, message, code=code)) as server,
        pytest.raises(ConfigError, match="no episode's first message"),
    ):
        quiet(server.url)


def test_a_server_that_knows_the_limit_by_its_newer_name_gets_it(chat_server):
    def answer(request, before):
        if "max_tokens" in request:
            return chat_server.error(400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.")
        return chat_server.cabinet_agent(request)

    with chat_server.serve(answer) as server:
        result = quiet(server.url, slots=1, max_action_tokens=9)
    assert result.mean_at_k == 1.0
    assert [r.get("max_completion_tokens") for r in server.requests] == [None] + [9] * (len(server.requests) - 1)


def with_message(**fields):
    return {"choices": [{"message": {"role": "assistant", **fields}, "finish_reason": "stop"}]}


@pytest.mark.parametrize(
    "body",
    [
        b'{"choices": ',
        {},
        {"object": "error", "message": "no"},
        *({"choices": wrong} for wrong in ([], "abc", ["abc"], [None])),
        with_message(content=None, tool_calls=[{"id": "a", "type": "function", "function": None}]),
        with_message(content=[{"text": "words"}]),
        with_message(tool_calls=[{"id": 5, "function": {"name": None, "arguments": "{}"}}]),
        with_message(content="a") | {"usage": {"prompt_tokens": "many"}},
    ],
)
def test_an_answer_that_is_no_chat_completion_is_an_error(chat_server: Any, body: Any) -> None:
    with (
        chat_server.serve(lambda *_: {"body": body}) as server,
        pytest.raises(SamplerError, match="chat completion"),
    ):
        quiet(server.url, retries=0)


def test_calls_that_the_environment_cannot_read_are_answered_all_the_same(chat_server, monkeypatch):
    offered = [{"type": "function", "function": {"name": "ls"}}]
    reset = CabinetEnv.reset

    def offers(self, **how):
        observation, info = reset(self, **how)
        return observation, info | {"tools": offered}

    monkeypatch.setattr(CabinetEnv, "reset", offers)

    def answer(request, before):
        body = chat_server.completion(request, None)
        texts = ['{"a": ', '{"a": 1}', "[1]", '{"a": ' + "[" * 3000, {"a": 1}, None]  # the last two are no text at all
        calls = [{"id": f"c{i}", "function": {"name": "ls", "arguments": a}} for i, a in enumerate(texts)]
        body["choices"][0]["message"]["tool_calls"] = calls
        return {"body": body}

    with chat_server.serve(answer) as server:
        quiet(server.url, tasks=1, horizon=2)
    assert [request["tools"] for request in server.requests] == [offered, offered]
    said, *results, told = server.requests[1]["messages"][2:]
    assert [call["function"]["arguments"] for call in said["tool_calls"]] == [
        *("{}", '{"a": 1}', "{}", "{}", '{"a": 1}', "{}")
    ]
    assert [(m["role"], m["tool_call_id"], m["content"]) for m in results] == [
        ("tool", f"c{i}", "This call was not carried out.") for i in range(6)
    ]
    assert told == {"role": "user", "content": "error"}


def test_an_episode_whose_environment_fails_is_begun_again(chat_server, monkeypatch):
    lock, failures = threading.Lock(), [2]
    step = CabinetEnv.step

    def failing(self, action):
        with lock:
            failures[0] -= 1
            if failures[0] >= 0:
                raise WorkerDied("the worker was killed")
        return step(self, action)

    monkeypatch.setattr(CabinetEnv, "step", failing)
    with chat_server.serve(chat_server.cabinet_agent) as server:
        result = quiet(server.url)
        assert (result.environment_errors, result.mean_at_k) == (0, 1.0)
        failures[0] = 3  # once more than an episode is begun again
        result = quiet(server.url, slots=1)
    assert (result.environment_errors, result.mean_at_k) == (1, 1.0)


@pytest.mark.parametrize(("opening", "closing"), [("<think>", "</think>"), ("[THINK]", "[/THINK]")])
def test_an_endpoint_s_thought_is_kept_apart(chat_server, opening, closing):
    def answer(request, before):
        if before == 1:
            body = chat_server.completion(request, None, finish_reason="length")
            body["choices"][0]["message"]["reasoning_content"] = "And now"
            return {"body": body}
        return f"{opening}\nhm\n{closing}\n\n" + chat_server.cabinet_agent(request)

    tags = {"reasoning_format": f"{opening} {closing}"} if opening != "<think>" else {}
    with chat_server.serve(answer) as server:
        quiet(server.url, tasks=1, horizon=3, **tags)
    assert server.requests[1]["messages"][-1]["content"] == "ok"  # the environment got the answer alone
    assert server.requests[2]["messages"][-1]["content"] == f"{UNFINISHED}\nerror"


def post(base_url, route, **body):
    request = urllib.request.Request(f"{base_url}/{route}", json.dumps(body).encode())
    with urllib.request.urlopen(request) as answer:
        return dict(json.load(answer))


def say(base_url, word):
    said = post(base_url, "chat/completions", messages=[{"role": "user", "content": word}])
    return str(said["choices"][0]["message"]["content"])


AGENT = []


def play(task, base_url):
    return AGENT[-1](base_url)


@pytest.fixture
def hosted(tmp_path):
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("".join(json.dumps({"id": name, "split": "test"}) + "\n" for name in "abcd"))

    def evaluate(url, agent, **settings):
        AGENT.append(agent)
        return quiet(url, agent=f"{__name__}:play", tasks=tasks, **settings)

    return evaluate


def test_calls_that_an_agent_makes_at_once_are_sent_at_once(chat_server, hosted):
    all_at_once = threading.Barrier(5, timeout=20)

    def agent(base_url):
        with ThreadPoolExecutor(5) as threads:
            return list(threads.map(lambda word: say(base_url, word), "abcde")) == ["word"] * 5

    def answer(request, _):
        all_at_once.wait()
        return "word"

    with chat_server.serve(answer) as server:
        result = hosted(server.url, agent, slots=5, every=4, retries=0)
    assert (result.mean_at_k, result.length_mean) == (1.0, 5.0)


TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}, "strict": True}}
FORM = {"name": "x", "schema": {"type": "object"}, "strict": True}
CHOICE = {"tools": [TOOL], "tool_choice": "required", "parallel_tool_calls": False}
EFFORT = {"temperature": 0.2, "reasoning_effort": "low"}


@pytest.mark.parametrize(
    ("asked", "sent"),
    [
        (EFFORT | {"guided_choice": ["a"], "stop": ".", "max_tokens": 5},) * 2,
        (CHOICE, CHOICE),
        (
            {"reasoning": {"effort": "low"}, "text": {"format": {"type": "json_schema", **FORM}}, "max_tool_calls": 9}
            | {"parallel_tool_calls": False},  # no tools, no calls
            {"reasoning_effort": "low", "response_format": {"type": "json_schema", "json_schema": FORM}},
        ),
    ],
)
def test_what_an_agent_asks_for_reaches_a_hosted_model(
    chat_server: Any, hosted: Any, asked: dict[str, Any], sent: dict[str, Any]
) -> None:
    route, name = ("responses", "input") if "text" in asked else ("chat/completions", "messages")

    def agent(base_url):
        return bool(post(base_url, route, **{name: [{"role": "user", "content": "Hi"}]}, **asked))

    usual = {"temperature": 1.0, "max_tokens": 1024}
    with chat_server.serve(lambda *_: "ok") as server:
        assert hosted(server.url, agent, every=4).mean_at_k == 1.0
    got = server.requests[0]
    assert {name: got[name] for name in got.keys() - {"messages", "model", "seed"}} == usual | sent


@pytest.mark.parametrize("stream", [False, True])
def test_what_the_server_says_and_what_the_agent_returns_is_passed_on_as_it_is(chat_server, hosted, stream):
    sent, got, returned = [], [], []
    part = {"type": "image_url", "image_url": {"url": "data:,"}, "new": [1.5, "é"]}

    def agent(base_url):
        messages = [{"role": "user", "content": [part, {"type": "text", "text": "look"}], "name": "x"}]
        for _ in range(2):
            body = json.dumps({"messages": messages, "tools": [TOOL], "stream": stream, "n": 1}).encode()
            with urllib.request.urlopen(urllib.request.Request(f"{base_url}/chat/completions", body)) as answer:
                got.append(answer.read())
            if stream:
                first, last = (json.loads(line[6:])["choices"][0] for line in got[-1].decode().split("\n\n")[:2])
                said = first.pop("delta")
                del said["tool_calls"][0]["index"]
                got[-1] = first | {"message": said, "finish_reason": last["finish_reason"]}
            else:
                said = json.loads(got[-1])["choices"][0]["message"]
            returned.append(said)
            if stream:  # as many frameworks do
                said = json.loads(json.dumps(said))
                del said["reasoning_details"], said["tool_calls"][0]["extra_content"]
            messages += [said, {"role": "tool", "tool_call_id": "c", "content": "ok", "new": {}}]
        returned[:] = [messages[0], returned[0], messages[2]]
        return True

    def answer(request, before):
        body = chat_server.completion(request, None, "content_filter") | {"provider": {"x": [None, 0.1]}}
        function = {"name": "look", "arguments": '{ "a":1 }', "new": 1}
        call = {"id": "c", "type": "function", "function": function, "extra_content": {"google": {"s": "é"}}}
        body["choices"][0] |= {"message": {"content": [{"type": "text", "text": "a"}], "role": "assistant"}, "new": 2}
        body["choices"][0]["message"] |= {"tool_calls": [call], "refusal": "no", "reasoning_details": [{"i": before}]}
        sent.append(json.dumps(body, ensure_ascii=False, indent=1).encode())
        return {"body": sent[-1]}

    with chat_server.serve(answer) as server:
        assert hosted(server.url, agent, every=4).mean_at_k == 1.0
    assert got == ([json.loads(one)["choices"][0] for one in sent] if stream else sent)
    assert server.requests[1]["messages"] == returned


@pytest.mark.parametrize(("status", "code"), [(403, None), (400, "content_filter"), (500, None)])
def test_a_flagged_prompt_is_its_episode_s(chat_server, hosted, status, code):
    def answer(request, _):
        if "flagged" in str(request["messages"]) or request["messages"][-1]["content"] == "start d":
            return chat_server.error(status, "flagged", code=code)
        return chat_server.cabinet_agent(request) if len(request["messages"]) > 1 else "ok"

    with chat_server.serve(answer) as server:

        def agent(base_url):
            return bool(say(base_url, "Hi" if len(server.requests) else "flagged"))

        result = hosted(server.url, agent, slots=1, retries=0)
        assert (result.successes, result.environment_errors) == (3, 0)
        assert result.faults.startswith("1 of 4 episodes ended by a refusal of the server, and count as failures. ")
        assert f"1 times: flagged ({server.url} answered {status}; it refuses" in result.faults
        result = quiet(server.url, tasks=39, retries=0)
        assert 0 < result.episodes - result.successes == int(result.faults.split()[0])


def test_a_server_s_failures_are_retried_and_are_no_steps(chat_server):
    def answer(request, before):
        cut = chat_server.completion(request, "")
        cut["choices"][0] |= {"finish_reason": "error", "error": {"message": "cut"}}
        if before % 2:
            return chat_server.cabinet_agent(request)
        failures = [cut, {"error": {"code": 502, "message": "down"}}, {"choices": []}, {"choices": None}]
        bodies = [{"body": body, "headers": {"retry-after-ms": "1"}} for body in failures]
        return [*bodies, chat_server.error(429, "busy"), chat_server.error(503, "busy")][before // 2 % 6]

    with chat_server.serve(answer) as server:
        result = quiet(server.url, slots=1)
        assert (result.mean_at_k, result.steps_per_optimum) == (1.0, 1.0)
        assert len(server.requests) == 2 * result.usage.requests


def test_a_field_may_be_left_out_or_added(chat_server):
    def answer(request, before):
        if "seed" in request:
            return chat_server.error(422, "Extra inputs are not permitted: seed")
        return "ok" if request["messages"][0]["content"] == "Hello" else chat_server.error(400, "not this one")

    with chat_server.serve(answer) as server:
        with pytest.raises(SamplerError, match=r"^Extra inputs.*--extra-body '{\"NAME\": null}'"):
            quiet(server.url)
        assert server.requests[1].keys() == server.requests[0].keys()
        with pytest.raises(UserCodeError, match=r"^all 4 episodes ended by a refusal of the server, .*: not this one"):
            quiet(server.url, extra_body='{"seed": null, "effort": 1}')
    assert server.requests[-1]["effort"] == 1
    with pytest.raises(ConfigError, match="--extra-body must not have tools"):
        quiet(server.url, extra_body={"tools": []})


def test_the_sampling_may_stay_as_in_a_run(chat_server, hosted):
    def agent(base_url):
        return bool(post(base_url, "chat/completions", messages=[{"role": "user", "content": "Hi"}], **EFFORT))

    with chat_server.serve(lambda *_: "ok") as server:
        assert hosted(server.url, agent, agent_sampling="run", every=4).mean_at_k == 1.0
    assert (server.requests[0]["temperature"], "reasoning_effort" in server.requests[0]) == (1.0, False)


def test_a_reply_of_an_ended_session_is_not_taken_for_that_of_the_next_attempt():
    class Model:
        async def reply(self, body, **_):
            return body["messages"]

        async def close(self):
            replies.append("closed")

    player, replies = _EndpointPlayer(Model()), []
    for attempt in ("first", "second"):
        player.submit(_Request(0, 0, {"messages": attempt}, 0))
        if attempt == "first":
            player._sent[0].result()
            player.end_session(0)
    while player.pending:
        replies += [(request.body["messages"], reply) for request, reply in player.step()]
    player.close()
    assert replies == [("second", "second"), "closed"]
