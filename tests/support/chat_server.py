"""An OpenAI-compatible server for tests: chat completions, not streamed, answered by a function."""

import json
import threading
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class ChatServer(ThreadingHTTPServer):
    """What it was asked, and how it answers.

    `answer` gets a request's body and the number of requests before it. It returns a message's text, or a whole answer:
    ``{"status", "body", "headers"}``.
    """

    daemon_threads = True

    def __init__(self, answer):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer = answer
        self.requests = []
        self.headers = []
        self.at_once = self.most_at_once = 0
        self.lock = threading.Lock()
        self.url = f"http://127.0.0.1:{self.server_port}/v1"


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send({"body": {"object": "list", "data": [{"id": "cabinet-7b", "object": "model"}]}})

    def do_POST(self):
        server, body = self.server, json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with server.lock:
            before = len(server.requests)
            server.requests.append(body)
            server.headers.append({k.lower(): v for k, v in self.headers.items()})
            server.at_once += 1
            server.most_at_once = max(server.most_at_once, server.at_once)
        answer = server.answer(body, before)
        with server.lock:
            server.at_once -= 1
        self.send(answer if isinstance(answer, dict) else {"body": completion(body, answer)})

    def send(self, answer):
        body = answer["body"]
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        own = {"Content-Type": "application/json", "Content-Length": str(len(content))}
        with suppress(ConnectionError):  # a client that no longer waits
            self.send_response(answer.get("status", 200))
            for name, value in {**own, **answer.get("headers", {})}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

    def log_message(self, *_):
        pass


@contextmanager
def serve(answer):
    with ChatServer(answer) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def completion(request, text, finish_reason="stop"):
    prompt = sum(len(str(message["content"] or "").split()) for message in request["messages"])
    words = len((text or "").split())
    return {
        "id": "1",
        "object": "chat.completion",
        "created": 0,
        "model": request["model"],
        "choices": [{"index": 0, "finish_reason": finish_reason, "message": {"role": "assistant", "content": text}}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": words, "total_tokens": prompt + words},
    }


def error(status, message, *, code=None, **headers):
    body = {"error": {"message": message, "type": "error", "param": None, "code": code}}
    return {"status": status, "body": body, "headers": {"retry-after-ms": "1", **headers}}


def cabinet_agent(request, _=0):
    said = [message["content"] for message in request["messages"] if message["role"] != "system"]
    last = said[-1].split()
    if last[0] == "code":
        return f"submit({last[1]}{last[2]})"
    if last[0] == "next":
        return "close()"
    if last[0] == "ok" and said[-2].startswith("open"):
        return "read()"
    named = next(text for text in reversed(said) if text.startswith(("next", "start")))
    return f"open({named.split()[1]})"
