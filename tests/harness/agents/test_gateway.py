"""The endpoint under real clients: retries are answered once, hang-ups and floods harm nobody, sessions end."""

import http.client
import json
import resource
import select
import socket
import threading
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import openai
import pytest
from processes import wait_until

from harness.agents import gateway as limits
from harness.agents.gateway import Gateway
from harness.agents.protocol import ModelAnswer, Refusal, budget_used_up, read_call

ASKED = [{"role": "user", "content": "Open a drawer."}]
MADE = {"id": "call1", "type": "function", "function": {"name": "open", "arguments": {"drawer": "c"}}}
ANSWER = ModelAnswer("Let me see.", [MADE], "thinking", "tool_calls", 7, 2, [("Let", -0.5), (" me \ud83d", -1.5)])
SOON_S = 20.0
CONNECTIONS = openai.DefaultHttpxClient(verify=False)


@pytest.fixture
def gateway(monkeypatch):
    monkeypatch.setattr(limits, "_MOST_BYTES", 100_000)
    with Gateway() as gateway:
        yield gateway


@pytest.fixture
def session(gateway):
    return gateway.open()


@pytest.fixture
def pool():
    with ThreadPoolExecutor(8) as pool:
        yield pool


def client(session, **more):
    more = {"timeout": SOON_S, "max_retries": 0, "http_client": CONNECTIONS} | more
    return openai.OpenAI(base_url=session.base_url, api_key="any", **more)


def ask(session, text="Hi", **more):
    messages = [{"role": "user", "content": text}]
    return client(session, **more).chat.completions.create(model="any", messages=messages).choices[0].message.content


def serve(session, *answers):
    heard = []
    for answer in answers:
        call = session.next_call(SOON_S)
        assert call is not None
        session.answer(call, answer)
        heard.append(call.messages[-1]["content"])
    return heard


def check_served(session, text="Hi", said="ok"):
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(ask, session, text)
        assert serve(session, ModelAnswer(said)) == [text]
        assert asked.result(SOON_S) == said


def post(session, body, path="/chat/completions", **headers):
    url = urlsplit(session.base_url)
    connection = http.client.HTTPConnection(url.netloc, timeout=SOON_S)
    connection.request("POST", f"{url.path}{path}", body, headers)
    response = connection.getresponse()
    assert response.getheader("Content-Type") == "application/json"
    assert response.getheader("x-should-retry") == (
        None if response.status < 400 else str(response.status == 429).lower()
    )
    return response.status, json.loads(response.read())


def connect(session, sent):
    url = urlsplit(session.base_url)
    connection = socket.create_connection((url.hostname, url.port), timeout=SOON_S)
    connection.sendall(sent)
    return connection


def head(session, *lines):
    path = urlsplit(session.base_url).path
    return "\r\n".join([f"POST {path}/chat/completions HTTP/1.1", *lines, "", ""]).encode()


def begin(session, text):
    body = json.dumps({"messages": [{"role": "user", "content": text}]}).encode()
    return connect(session, head(session, "Host: x", f"Content-Length: {len(body)}") + body)


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_completion_arrives_whole_and_as_events(session, pool, stream):
    served = pool.submit(serve, session, ANSWER)
    chat = client(session).chat.completions
    if not stream:
        whole = chat.create(model="any", messages=ASKED, logprobs=True)
    else:
        with chat.stream(model="any", messages=ASKED, logprobs=True, stream_options={"include_usage": True}) as events:
            whole = events.get_final_completion()
    assert served.result() == ["Open a drawer."]
    found = whole.model_dump()
    [choice] = found["choices"]
    message, [call] = choice["message"], choice["message"]["tool_calls"]
    assert (message["content"], message["reasoning_content"]) == ("Let me see.", "thinking")
    assert (call["function"]["name"], json.loads(call["function"]["arguments"])) == ("open", {"drawer": "c"})
    token = choice["logprobs"]["content"][0]
    assert (token["token"], token["logprob"], choice["finish_reason"]) == ("Let", -0.5, "tool_calls")
    assert (found["usage"]["prompt_tokens"], found["usage"]["completion_tokens"]) == (7, 2)


@pytest.mark.parametrize("stream", [False, True])
def test_a_response_arrives_whole_and_as_events(session, pool, stream):
    served = pool.submit(serve, session, ANSWER)
    responses = client(session).responses
    if not stream:
        whole = responses.create(model="any", input="Open a drawer.")
    else:
        with responses.stream(model="any", input="Open a drawer.") as events:
            whole = events.get_final_response()
    assert served.result() == ["Open a drawer."]
    found = whole.model_dump()
    call = found["output"][-1]
    assert whole.id.startswith("resp_")
    assert (whole.output_text, found["status"], found["usage"]["total_tokens"]) == ("Let me see.", "completed", 9)
    assert (call["type"], call["name"], call["call_id"]) == ("function_call", "open", "call1")
    assert json.loads(call["arguments"]) == {"drawer": "c"}


@pytest.mark.parametrize("unread", [False, True])
def test_a_retry_is_known_by_its_content_after_a_client_that_has_gone_without_its_answer(session, pool, unread):
    first = begin(session, "Hi")
    call = session.next_call(SOON_S)
    assert call is not None
    if not unread:
        first.close()
    session.answer(call, ModelAnswer("once"))
    if unread:
        wait_until(lambda: bool(select.select([first], [], [], 0)[0]))
        first.close()
    body = json.dumps({"messages": [{"role": "user", "content": "Hi"}]}).encode()
    assert post(session, body)[1]["choices"][0]["message"]["content"] == "once"
    again = pool.submit(post, session, body)
    serve(session, ModelAnswer("twice"))
    assert again.result(SOON_S)[1]["choices"][0]["message"]["content"] == "twice"


def test_an_answer_that_has_arrived_is_kept_from_an_equal_call_while_its_connection_ends(session, pool):
    call = read_call(json.dumps({"messages": ASKED}).encode(), "chat")
    first = session.request(call, lambda: False)
    session.answer(session.next_call(0), ANSWER)
    looked, ended = threading.Event(), threading.Event()

    def unread():
        looked.set()
        return ended.wait(0.2)  # a socket that is shut down here looks like one whose client has reset it

    assert session.wait(first, lambda: False, unread) == ANSWER
    second = pool.submit(session.request, call, lambda: False)
    looked.wait(SOON_S)
    session.settle(first, unread)
    ended.set()
    assert second.result(SOON_S) is not first


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("timeout", [SOON_S, 0.3])
def test_equal_calls_at_once_are_as_many_calls(session, pool, timeout, stream):
    create = client(session, timeout=timeout, max_retries=50).chat.completions.create

    def vote(_):
        made = create(model="any", messages=ASKED, stream=stream)
        if stream:
            return "".join(chunk.choices[0].delta.content or "" for chunk in made)
        return str(made.choices[0].message.content)

    votes = pool.map(vote, range(8))
    call = session.next_call(SOON_S)
    assert call is not None
    time.sleep(1.0 if timeout < 1 else 0)  # all clients go, and ask again
    session.answer(call, ModelAnswer("0"))
    serve(session, *[ModelAnswer(str(number)) for number in range(1, 8)])
    assert sorted(votes) == [str(number) for number in range(8)]


def test_a_call_whose_client_hung_up_before_its_turn_is_not_played(session):
    begin(session, "gone").close()
    deadline = time.monotonic() + SOON_S
    while (call := session.next_call(0.1)) is not None and time.monotonic() < deadline:
        session.answer(call, ModelAnswer())  # taken in the moment before the hang-up was seen
    check_served(session, "there")


def test_sessions_see_nothing_of_each_other(gateway):
    ours, theirs = gateway.open(), gateway.open()
    check_served(theirs, "secret", "for them")
    check_served(ours, "secret", "for us")
    theirs.end(budget_used_up(1))
    check_served(ours)


def test_after_the_end_waiting_and_later_calls_get_one_error_and_no_client_tries_again(session, pool):
    waiting = [pool.submit(ask, session, name, max_retries=5) for name in ("taken", "in line")]
    wait_until(lambda: len(session._line) >= 2)
    taken = session.next_call(SOON_S)
    assert taken is not None
    session.end(budget_used_up(3))
    session.end(Refusal("a second end changes nothing", status=500))
    session.answer(taken, ModelAnswer("too late"))
    for asked in (*waiting, pool.submit(ask, session, max_retries=5)):
        error = asked.exception(SOON_S)
        assert isinstance(error, openai.APIStatusError)
        assert error.status_code == 404
        assert error.code == "horizon_reached"
        assert "3" in error.message
    assert session.next_call(SOON_S) is None


def test_too_large_and_unmeasured_requests_are_refused(session):
    assert post(session, b"x" * 100_001)[0] == 413
    assert post(session, b"{}", **{"Content-Length": "-1"})[0] == 411
    assert post(session, b"2\r\n{}\r\nz\r\n", **{"Transfer-Encoding": "chunked"})[0] == 400
    assert post(session, b"ffffff\r\n", **{"Transfer-Encoding": "chunked"})[0] == 413


@pytest.mark.parametrize("limit", ["session._MOST_WAITING", "gateway._MOST_CONNECTIONS"])
def test_a_session_has_so_many_calls_and_connections_that_wait(gateway, pool, monkeypatch, limit):
    monkeypatch.setattr(f"harness.agents.{limit}", 2)
    session = gateway.open()
    waiting = [pool.submit(ask, session, str(number)) for number in range(2)]
    wait_until(lambda: len(session._line) >= 2)
    with pytest.raises(openai.RateLimitError):
        ask(session, "one more")
    serve(session, *[ModelAnswer("ok")] * 2)
    assert {one.result(SOON_S) for one in waiting} == {"ok"}


def test_a_body_may_come_in_chunks(session, pool):
    body = json.dumps({"messages": ASKED}).encode()
    served = pool.submit(serve, session, ModelAnswer("whole"))
    chunks = b"".join(b"%x;a=b\r\n%s\r\n" % (len(part), part) for part in (body[:9], body[9:])) + b"0\r\nx: y\r\n\r\n"
    status, answer = post(session, chunks, **{"Transfer-Encoding": "chunked", "Content-Length": str(len(body))})
    assert (status, answer["choices"][0]["message"]["content"]) == (200, "whole")
    assert served.result(SOON_S) == ["Open a drawer."]


def test_other_requests_go_to_the_upstream_endpoint(gateway, session, chat_server):
    body = json.dumps({"model": "e", "messages": []}).encode()
    status, answer = post(session, body, "/embeddings")
    assert (status, "--agent-upstream" in answer["error"]["message"]) == (404, True)
    with chat_server.serve(lambda _, before: chat_server.error(429, "busy") if before else "words") as server:
        passing = gateway.open(upstream=server.url)
        answers = [post(passing, body, "/embeddings?a=b", Authorization="Bearer mine") for _ in range(2)]
    assert [status for status, _ in answers] == [200, 429]
    assert answers[0][1]["choices"][0]["message"]["content"] == "words"
    assert server.headers[0]["authorization"] == "Bearer mine"
    assert post(passing, body, "/embeddings")[0] == 502


def test_any_name_of_a_model_is_found(session):
    assert client(session).models.retrieve("meta/llama").id == "meta/llama"
    assert [model.id for model in client(session).models.list()] == ["policy"]


def test_each_option_without_effect_is_noted_once(gateway, pool):
    session = gateway.open()
    limits._note.cache_clear()
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        for options in ({"top_p": 0.9}, {"top_p": 0.8, "seed": 1}, {"seed": 2}):
            served = pool.submit(serve, session, ModelAnswer("ok"))
            assert post(session, json.dumps({"messages": ASKED, **options}).encode())[0] == 200
            served.result()
    said = [str(one.message).split(",")[0] for one in noted if one.category is RuntimeWarning]
    assert said == ["the agent sets top_p", "the agent sets seed"]
    assert post(gateway.open(sampling="strict"), json.dumps({"messages": ASKED, "seed": 2}).encode())[0] == 400


def test_one_session_cannot_take_the_descriptors_of_the_run(monkeypatch):
    monkeypatch.setattr(limits, "most_files", lambda: 160)
    with Gateway() as gateway:
        greedy, other = gateway.open(), gateway.open()
        before = threading.active_count()
        greedy.end(budget_used_up(1))
        held = []
        for _ in range(100):
            held.append(begin(greedy, "more"))
            assert held[-1].recv(1) == b"H", "it gets its error"
        held += [connect(other, b"POST ") for _ in range(100)]
        check_served(other)
        wait_until(lambda: threading.active_count() <= before + 1 + 10 + 21)
        for connection in held:
            connection.close()


def test_descriptors_are_raised_as_far_as_the_system_allows():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(256, soft // 2), hard))
        with Gateway() as gateway:
            assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
            assert gateway.descriptors == hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_clients_pool_of_connections_outlives_a_session(gateway, pool):
    first, second = gateway.open(), gateway.open()
    url = urlsplit(first.base_url)
    connection = http.client.HTTPConnection(url.netloc, timeout=SOON_S)

    def say(session):
        path = f"{urlsplit(session.base_url).path}/chat/completions"
        connection.request("POST", path, json.dumps({"messages": ASKED}))
        response = connection.getresponse()
        response.read()
        return response.status

    for session in (first, second):
        said = pool.submit(say, session)
        assert session.next_call(SOON_S) is not None
        first.close() if session is second else None
        session.answer(session.next_call(0), ModelAnswer("ok"))
        assert said.result(SOON_S) == 200


def test_garbage_on_a_connection_harms_nobody(session):
    for garbage in (b"\x16\x03\x01" * 50, b"POST / HTTP/9\r\n\r\n", b"GET " + b"a" * 100_000):
        connect(session, garbage).close()
    check_served(session)


def test_an_unknown_or_closed_key_is_refused(gateway, session):
    session.close()
    with pytest.raises(openai.AuthenticationError):
        ask(session)
    with pytest.raises(openai.AuthenticationError):
        client(session).models.list()
    session.close()  # again does nothing
