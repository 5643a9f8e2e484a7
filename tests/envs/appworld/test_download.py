import contextlib
import json
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from eh_gym.errors import EHError
from envs.appworld import download as downloads

CONTENT = random.Random(0).randbytes(1_000_000)


class Server(ThreadingHTTPServer):
    """A file server on the loopback that misbehaves as told.

    Attributes:
        asked: The headers of each request.
        cuts: For the next requests: bytes after which the connection ends; None for no end.
        stall: Whether a cut is a silence instead, until ``over``.
    """

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.content, self.etag, self.ranges = CONTENT, '"one"', True
        self.status, self.type, self.sized = 200, "binary/octet-stream", True
        self.asked, self.cuts, self.stall, self.over = [], [], False, threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}/data.bundle"


class _Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        server, start = self.server, 0
        server.asked.append(dict(self.headers))
        if server.status != 200:
            return self.send_error(server.status)
        if server.ranges and "Range" in self.headers and self.headers.get("If-Range") in (server.etag, None):
            start = int(self.headers["Range"].removeprefix("bytes=").removesuffix("-"))
            if start >= len(server.content):
                return self.send_error(416)
        body = server.content[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Type", server.type)
        if server.etag:
            self.send_header("ETag", server.etag)
        if server.sized:
            self.send_header("Content-Length", str(len(body)))
        if start:
            told = start + server.ranges - 1  # ranges=2: a server that sends another part
            self.send_header("Content-Range", f"bytes {told}-{len(server.content) - 1}/{len(server.content)}")
        self.end_headers()
        cut = server.cuts.pop(0) if server.cuts else None
        with contextlib.suppress(OSError):
            self.wfile.write(body[:cut])
            self.wfile.flush()
            if server.stall and cut is not None:
                server.over.wait(600)


@pytest.fixture
def server(monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with Server() as made:
        threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield made
        made.over.set()
        made.shutdown()


@pytest.fixture(autouse=True)
def silence(monkeypatch):
    """No word on how far it is, however slow the machine."""
    monkeypatch.setattr(downloads, "_PROGRESS_S", 1e6)


def download(url, target, *, timeout_s=600.0, say):
    """The download, which does not take a busy machine for a silent server."""
    downloads.download(url, target, timeout_s=timeout_s, say=say)


@pytest.fixture
def target(tmp_path):
    return tmp_path / "downloads" / "data.bundle"


def quiet(_):
    pass


def ranges(server):
    return [headers.get("Range") for headers in server.asked]


def left(target):
    return sorted(path.name for path in target.parent.iterdir())


def test_brings_the_file_and_leaves_nothing_else(server, target):
    download(server.url, target, say=quiet)
    assert target.read_bytes() == CONTENT
    assert left(target) == ["data.bundle"]
    assert ranges(server) == [None]


def test_a_broken_connection_goes_on_where_it_broke(server, target):
    server.cuts, said = [300_000, 200_000], []
    download(server.url, target, say=said.append)
    assert target.read_bytes() == CONTENT
    assert ranges(server) == [None, "bytes=300000-", "bytes=500000-"]
    assert ["300,000 of 1,000,000" in said[0], "500,000 of 1,000,000" in said[1]] == [True, True]


def test_gives_up_after_three_breaks_and_the_next_run_goes_on(server, target):
    server.cuts = [100_000] * 3
    with pytest.raises(EHError, match="300,000 of 1,000,000 bytes"):
        download(server.url, target, say=quiet)
    assert left(target) == ["data.bundle.part", "data.bundle.part.json"]
    download(server.url, target, say=quiet)
    assert target.read_bytes() == CONTENT
    assert ranges(server)[-1] == "bytes=300000-"


def test_a_killed_download_goes_on_where_it_was(server, target):
    server.cuts, server.stall = [600_000], True
    code = (
        "import pathlib, sys; from envs.appworld.download import download\n"
        "download(sys.argv[1], pathlib.Path(sys.argv[2]), timeout_s=600)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, server.url, str(target)])
    part = target.with_name("data.bundle.part")
    deadline = time.monotonic() + 120
    while not (part.is_file() and part.stat().st_size > 400_000):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = part.stat().st_size
    download(server.url, target, say=quiet)
    assert target.read_bytes() == CONTENT
    assert ranges(server) == [None, f"bytes={kept}-"]


def test_a_silent_server_is_a_broken_connection(server, target):
    server.stall = True
    for limit_s in (0.3, 3.0, 30.0):  # on a busy machine one that is not silent may seem so in the shortest
        server.cuts, said = [400_000], []
        with contextlib.suppress(EHError):
            download(server.url, target, timeout_s=limit_s, say=said.append)
        if len(said) == 1 and "400,000 bytes (timed out)" in said[0]:
            break
        for kept in target.parent.iterdir():
            kept.unlink()
    assert "400,000 bytes (timed out)" in said[0]
    assert target.read_bytes() == CONTENT


def test_another_file_under_the_same_name_comes_whole(server, target):
    server.cuts = [300_000] * 3
    with pytest.raises(EHError):
        download(server.url, target, say=quiet)
    server.content, server.etag = CONTENT[::-1], '"two"'
    download(server.url, target, say=quiet)
    assert target.read_bytes() == CONTENT[::-1]
    assert ranges(server)[-1] == "bytes=900000-"


@pytest.mark.parametrize("etag", [None, 'W/"weak"'])
def test_without_a_strong_tag_it_starts_again(server, target, etag):
    server.etag, server.cuts = etag, [300_000]
    download(server.url, target, say=quiet)
    assert target.read_bytes() == CONTENT
    assert ranges(server) == [None, None]


def test_what_was_kept_of_another_address_is_not_used(server, target):
    server.cuts = [300_000] * 3
    with pytest.raises(EHError):
        download(server.url + "?old", target, say=quiet)
    download(server.url, target, say=quiet)
    assert target.read_bytes() == CONTENT
    assert ranges(server)[-1] is None


def test_a_server_without_ranges_starts_again(server, target):
    server.ranges, server.cuts = False, [300_000]
    download(server.url, target, say=quiet)
    assert target.read_bytes() == CONTENT


def test_a_part_longer_than_the_file_is_given_up(server, target):
    download(server.url, target, say=quiet)
    part = target.with_name("data.bundle.part")
    part.write_bytes(CONTENT + b"more")
    part.with_name(part.name + ".json").write_text(json.dumps({"url": server.url, "etag": server.etag}))
    download(server.url, target, say=quiet)
    assert target.read_bytes() == CONTENT


def test_another_part_than_was_asked_for_is_refused(server, target):
    server.ranges, server.cuts = 2, [300_000]
    with pytest.raises(EHError, match="another part"):
        download(server.url, target, say=quiet)
    assert target.with_name("data.bundle.part").read_bytes() == CONTENT[:300_000]


def test_a_web_page_is_not_the_file_and_costs_nothing_of_what_was_kept(server, target):
    server.cuts = [300_000] * 3
    with pytest.raises(EHError):
        download(server.url, target, say=quiet)
    server.content, server.type, server.ranges = b"<html>log in, please</html>", "text/html; charset=utf-8", False
    with pytest.raises(EHError, match="web page"):
        download(server.url, target, say=quiet)
    assert target.with_name("data.bundle.part").read_bytes() == CONTENT[:900_000]
    server.content, server.type, server.ranges = CONTENT, "binary/octet-stream", True
    download(server.url, target, say=quiet)
    assert target.read_bytes() == CONTENT
    assert ranges(server)[-1] == "bytes=900000-"


@pytest.mark.parametrize("status", [403, 404, 500])
def test_a_refusal_is_an_error_and_not_asked_for_again(server, target, status):
    server.status = status
    with pytest.raises(EHError, match=f"the server answers {status}"):
        download(server.url, target, say=quiet)
    assert len(server.asked) == 1
    assert left(target) == []


def test_a_server_that_never_answers_is_given_up(target):
    """One that drops what it gets: its queue is full and it accepts nobody."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        waiting = []
        for _ in range(4):
            waiting.append(socket.socket())
            waiting[-1].setblocking(False)
            waiting[-1].connect_ex(listener.getsockname())
        started = time.monotonic()
        with pytest.raises(EHError, match="cannot be"):
            download(f"http://127.0.0.1:{listener.getsockname()[1]}/x", target, timeout_s=0.3, say=quiet)
        assert time.monotonic() - started < 60  # the system itself would try for two minutes
        for connection in waiting:
            connection.close()
