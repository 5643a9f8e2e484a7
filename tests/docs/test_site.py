"""The built site (EH_SITE, which tox run -e docs sets): it asks no other host for anything, nothing is left unrendered,
and first screens and phones in a headless Chromium."""

import functools
import os
import re
import threading
from html.parser import HTMLParser
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
SMALLEST = """() => Math.min(...[...document.querySelectorAll("article :is(p, li, td, code)")].map(
  element => parseFloat(getComputedStyle(element).fontSize)))"""


class _Requests(HTMLParser):
    def __init__(self):
        super().__init__()
        self.urls = []

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        if tag == "link" and values.get("rel") in ("stylesheet", "preconnect", "preload", "icon"):
            self.urls.append(values.get("href") or "")
        if tag in ("script", "img", "iframe", "source", "video"):
            self.urls.append(values.get("src") or "")


def _pages():
    pages = sorted(SITE.rglob("*.html"))
    assert len(pages) > 15
    return pages


def test_no_page_asks_another_host():
    for page in _pages():
        parser = _Requests()
        parser.feed(page.read_text())
        assert not [url for url in parser.urls if re.match(r"(https?:)?//", url)], page
    for sheet in SITE.rglob("*.css"):
        assert not re.search(r"(url\(|@import )[\"']?(https?:)?//", sheet.read_text()), sheet


def test_formulas_are_drawn_and_named():
    text = (SITE / "method.html").read_text()
    assert len(re.findall(r'<div class="math" role="math" aria-label="[^"]+"><svg', text)) >= 7
    assert "\\mathrm" not in re.sub('aria-label="[^"]*"', "", text)


def test_notebooks_are_pages_with_their_outputs():
    expected = {"own_environment": "K at the end", "train": "K by update", "saturation": "Success and cost"}
    for name, shown in expected.items():
        text = (SITE / f"repository/examples/{name}.html").read_text()
        assert shown in text
        assert text.count("<img") + text.count("<svg") > 0


def test_nothing_is_left_unrendered():
    for page in _pages():
        body = re.sub(
            r"<(pre|code)\b.*?</\1>", "", page.read_text().split("<article")[-1].split("</article>")[0], flags=re.DOTALL
        )
        for leftover in ("```", "&gt;&gt;&gt; ", "::: ", "not run:-->"):
            assert leftover not in body, (page, leftover)


def test_llms_txt_names_each_page_with_a_sentence():
    text = (SITE / "llms.txt").read_text()
    assert all((SITE / page).is_file() for page in re.findall(r"\]\(([^)#]+\.html)", text))
    assert len(re.findall(r"^- \[.+\]\(.+\.html\): [A-Z`*].+[.:]$", text, re.MULTILINE)) > 30


def test_a_table_of_sentences_can_be_shown_as_cards():
    for name in ("reference/flags.html", "reference/metrics.html", "comparison.html"):
        tables = re.findall(r"<table data-sentences.*?</table>", (SITE / name).read_text(), re.DOTALL)
        assert tables, name
        for table in tables:
            for row in re.findall(r"<tr>(?:(?!<th).)*?</tr>", table, re.DOTALL):
                assert row.count("<td") == row.count("data-column=") + 1, row  # the first cell is the card's heading


def test_code_is_shown_as_it_is_written():
    text = re.sub(r"</?span[^>]*>", "", (SITE / "environments.html").read_text())
    assert "<code>&lt;tool_call&gt;</code>" in text
    assert "<code>python -m envs install bfcl</code>" in text


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


def _own_pages():
    pages = [page.relative_to(SITE).as_posix() for page in _pages()]
    own = [page for page in pages if page != "404.html" and not page.startswith("repository/")]
    assert len(own) > 25
    return own


def test_each_page_fits_on_screens_and_phones(browser, url):
    """A first screen says what the page gives, and has a command that is not cut off. A phone shows whole pages."""
    page = browser.new_page()
    page.set_default_timeout(120_000)
    for name in _own_pages():
        page.set_viewport_size({"width": SCREEN[0], "height": SCREEN[1]})
        page.goto(f"{url}/{name}")
        assert page.evaluate(FIRST, "p")["top"] < SCREEN[1], name
        command = page.evaluate(FIRST, "table" if name in NO_COMMAND else "pre > code")
        assert command["top"] < SCREEN[1], name
        assert command["cut"] <= 0, name
        page.set_viewport_size({"width": 390, "height": 844})
        assert page.evaluate("document.documentElement.scrollWidth") == 390, name
        assert page.evaluate(SMALLEST) >= 12, name
    page.close()
