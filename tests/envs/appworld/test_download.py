"""The download of AppWorld's data, from a server on the loopback that misbehaves as told."""

import contextlib
import random
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from eh_gym.errors import EHError
from envs.appworld.download import download

CONTENT = random.Random(0).randbytes(1_000_000)


@pytest.fixture
def server(monkeypatch):
    """server(changes) -> the address of a file that is served in this way."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    way = {"status": 200, "type": "binary/octet-stream", "sized": True, "cut": None, "silent": False}
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def do_GET(self):
            self.send_response(way["status"])
            self.send_header("Content-Type", way["type"])
            if way["sized"]:
                self.send_header("Content-Length", str(len(CONTENT)))
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(CONTENT[: way["cut"]])
                self.wfile.flush()
                if way["silent"]:
                    over.wait(600)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as made:
        threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield lambda **changes: way.update(changes) or f"http://127.0.0.1:{made.server_port}/data.bundle"
        over.set()
        made.shutdown()


@pytest.fixture
def target(tmp_path):
    return tmp_path / "downloads" / "data.bundle"


@pytest.mark.parametrize("sized", [True, False])
def test_it_brings_the_file_and_leaves_nothing_else(server, target, sized):
    download(server(sized=sized), target, timeout_s=600)
    assert target.read_bytes() == CONTENT
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize(
    ("changes", "timeout_s", "message"),
    [
        ({"cut": 300_000}, 600, "300,000 of 1,000,000"),
        ({"cut": 300_000, "silent": True}, 0.3, "timed out"),
        ({"type": "text/html; charset=utf-8"}, 600, "web page"),
        ({"status": 404}, 600, "404"),
    ],
)
def test_what_is_not_the_whole_file_is_an_error_and_leaves_nothing(server, target, changes, timeout_s, message):
    with pytest.raises(EHError, match=message):
        download(server(**changes), target, timeout_s=timeout_s)
    assert not list(target.parent.glob("*"))


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/x", "no/such/file", "http://", "http://127.0.0.1:99999999/x"])
def test_what_is_no_address_is_refused(target, url):
    with pytest.raises(EHError, match="address"):
        download(url, target)
