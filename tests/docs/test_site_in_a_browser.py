"""The built site (EH_SITE) in a headless Chromium: first screens, and phones."""

import functools
import os
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from chromium import chromium

SITE = Path(os.environ.get("EH_SITE", ""))
pytestmark = pytest.mark.skipif("EH_SITE" not in os.environ, reason="tox run -e docs builds it")
SCREEN = (1280, 800)  # pixels
NO_COMMAND = {"arms.html", "comparison.html", "reference/flags.html", "reference/metrics.html"}  # tables
FIRST = """sel => {
  const found = document.querySelector(`article ${sel}`);
  return found && {top: found.getBoundingClientRect().top, cut: found.scrollWidth - found.clientWidth};
}"""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def url():
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(SITE)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def browser():
    with chromium() as started:
        yield started


def _pages():
    pages = [page.relative_to(SITE).as_posix() for page in sorted(SITE.rglob("*.html"))]
    own = [page for page in pages if page != "404.html" and not page.startswith("repository/")]
    assert len(own) > 25
    return own


def _open(browser, width, height):
    page = browser.new_page(viewport={"width": width, "height": height})
    page.set_default_timeout(120_000)
    return page


def test_a_first_screen_says_what_the_page_gives_and_has_a_command_that_is_not_cut_off(browser, url):
    page = _open(browser, *SCREEN)
    for name in _pages():
        page.goto(f"{url}/{name}")
        assert page.evaluate(FIRST, "p")["top"] < SCREEN[1], name
        command = page.evaluate(FIRST, "table" if name in NO_COMMAND else "pre > code")
        assert command["top"] < SCREEN[1], name
        assert command["cut"] <= 0, name
    page.close()


def test_no_page_is_wider_than_a_phone(browser, url):
    page = _open(browser, 390, 844)
    for name in _pages():
        page.goto(f"{url}/{name}")
        assert page.evaluate("document.documentElement.scrollWidth") == 390, name
    page.close()
