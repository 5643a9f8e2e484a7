"""Both pages in a headless Chromium, from file://, at desktop and phone widths; skipped where there is no Chromium."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from chromium import chromium

from harness.report import main
from harness.run.episode_log import write_episodes
from harness.types.sampler import Sample
from harness.types.trajectory import Trajectory, Turn

from .conftest import HOSTILE, write_log, write_run, write_sweep

WIDTHS = {"desktop": (1280, 800), "phone": (390, 844)}
ROWS_IN_SIGHT = 40  # at most, of rows 56 pixels high

# Counts what the page inflates: its index, and then each part that is read.
COUNT_INFLATED = """
window.inflated = 0;
window.DecompressionStream = class extends DecompressionStream {
  constructor(format) { super(format); window.inflated += 1; }
};
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report of a sweep with a hostile log, and the page of 10,048 episodes."""
    folder = tmp_path_factory.mktemp("reports")
    sweep = write_sweep(folder / "sweep", seeds=1, updates=4, only=("comparison",))
    write_log(sweep / "runs" / "comparison-4-seed0", updates=2, tasks=2, hostile=True)
    main([str(sweep), "--out", str(folder / "report.html")])
    many = write_run(folder / "many", updates=157)
    write_log(many, updates=157, tasks=8)
    main([str(many), "--out", str(folder / "many.html"), "--episodes", "20000"])
    return folder


class Visit:
    """A page, with all that it complained of and asked for."""

    def __init__(self, browser: Any, path: Path, width: str, fragment: str = "") -> None:
        w, h = WIDTHS[width]
        self.page = browser.new_page(viewport={"width": w, "height": h}, has_touch=width == "phone")
        self.page.set_default_timeout(300_000)  # milliseconds: a busy machine may take long over 10,048 episodes
        self.complaints: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.add_init_script(COUNT_INFLATED)
        self.page.goto(f"{path.as_uri()}{fragment}")

    def width(self) -> int:
        return int(self.page.evaluate("document.documentElement.scrollWidth"))

    def shown(self) -> int:
        """How many episodes pass the filters, as the page says."""
        words = self.page.inner_text("#count")
        return int(re.match(r"[\d,]+", words)[0].replace(",", ""))  # type: ignore[index]

    def set(self, name: str, value: str) -> None:
        field = self.page.locator(f"[name={name}]")
        if field.evaluate("e => e.tagName") == "SELECT":
            field.select_option(value)
        else:
            field.fill(value)

    def waits_for(self, shown: int) -> None:
        said = f"{shown:,} of "
        self.page.wait_for_function(
            "said => document.getElementById('count').textContent.startsWith(said)"
            " && !document.getElementById('count').textContent.includes('searching')",
            arg=said,
        )

    def close(self) -> None:
        assert self.complaints == []
        assert [url for url in self.asked if not url.startswith(("file:", "data:"))] == []
        self.page.close()


@pytest.mark.parametrize("width", WIDTHS)
def test_the_report_fits_the_screen_and_shows_its_figures(browser: Any, made: Path, width: str) -> None:
    visit = Visit(browser, made / "report.html", width)
    images = visit.page.locator("img")
    assert images.count() == 5
    loaded = visit.page.evaluate("[...document.images].every((image) => image.complete && image.naturalWidth > 0)")
    assert loaded
    for details in visit.page.locator("details").all():
        details.evaluate("e => e.open = true")
    assert visit.width() == WIDTHS[width][0]
    assert visit.page.inner_text("table.numbers >> nth=0").count("K=50") == 1
    visit.close()


@pytest.mark.parametrize("width", WIDTHS)
def test_ten_thousand_episodes_are_listed_without_reading_or_building_them(
    browser: Any, made: Path, width: str
) -> None:
    visit = Visit(browser, made / "many.episodes.html", width)
    visit.page.wait_for_selector(".row")
    assert visit.page.locator(".row").first.is_visible()
    assert visit.shown() == 10_048
    assert visit.page.locator(".row").count() <= ROWS_IN_SIGHT
    assert visit.page.evaluate("inflated") == 1  # the index
    visit.page.evaluate("document.getElementById('filters').open = true")
    visit.set("success", "1")
    visit.waits_for(157 * 8)
    visit.set("from", "100")
    visit.waits_for(57 * 8)
    assert visit.page.evaluate("inflated") == 1  # no filter reads a text
    assert visit.page.locator(".row").count() <= ROWS_IN_SIGHT
    assert visit.page.evaluate("document.querySelectorAll('*').length") < 600
    visit.page.locator(".row").first.click()
    visit.page.wait_for_selector(".turn")
    assert visit.page.evaluate("inflated") == 3  # the episode's part and its system prompt
    assert visit.width() == WIDTHS[width][0]
    visit.close()


def test_every_filter(browser: Any, made: Path) -> None:
    visit = Visit(browser, made / "many.episodes.html", "desktop")
    visit.page.wait_for_selector(".row")
    every = 157 * 64
    for name, value, passing in (
        ("task", "TRAIN-003", 64),
        ("text", "Open(5)", 157 * 8),
        ("success", "0", 157 * 56),
        ("end", "horizon", 157 * 56),
        ("loss", "1", 157 * 8),
        ("loss", "0", 157 * 56),
        ("from", "150", 7 * 64),
        ("to", "1", 2 * 64),
        ("task", "no such task", 0),
    ):
        visit.set(name, value)
        visit.waits_for(passing)
        assert visit.page.locator(".row").count() == min(passing, visit.page.locator(".row").count())
        visit.page.click("button[type=reset]")
        visit.waits_for(every)
    visit.set("sort", "advantage")
    assert "✓ success" in visit.page.inner_text("#row-0")
    visit.close()


def test_an_episode_shows_what_was_trained_on(browser: Any, made: Path) -> None:
    visit = Visit(browser, made / "many.episodes.html", "desktop", "#episode=0.3.1")
    visit.page.wait_for_selector(".turn")
    text = visit.page.inner_text("main")
    for words in (
        "train-003-00",
        "6 of K = 6",
        "stopped by K",
        "−0.400, in the loss",
        "34, of which the model wrote 18",
        "start 3 0",
    ):
        assert words in text, words
    assert visit.page.locator(".message.action.trained").count() == 6
    assert visit.page.locator(".turn").count() == 6
    assert visit.page.locator(".bar .trained").count() == 6
    assert visit.page.locator(".group a").count() == 8
    visit.page.click("summary >> text=System prompt")
    assert "The rules." in visit.page.inner_text("main")
    visit.page.click(".group a >> nth=0")  # the success of the same group
    visit.page.wait_for_function("() => document.querySelectorAll('.turn').length === 2")
    assert "+2.600, in the loss" in visit.page.inner_text("main")
    visit.page.goto((made / "many.episodes.html").as_uri() + "#episode=0.3.9")  # group 1, outside the loss
    visit.page.wait_for_function("() => document.querySelector('main').innerText.includes('train-003-01')")
    assert "not in the loss" in visit.page.inner_text(".facts")
    assert visit.page.locator(".trained").count() == 0
    visit.close()


def test_a_thought_is_shown_apart_from_its_action(browser: Any, tmp_path: Path) -> None:
    run = write_run(tmp_path / "thinks", updates=1)
    t = Trajectory(
        "train-think", 0, horizon=3, reward=1.0, success=True, end="terminated", system_prompt="s", prompt="go"
    )
    t.add_prompt([1] * 4)
    about = {"cut": False, "malformed": False, "action_tokens": 5, "reasoning_tokens": 3}
    for turn in (
        Turn("open(a)", "ok", reasoning=HOSTILE, **about),
        Turn("", "error", reasoning="it goes on", unfinished=True, **about),
        Turn("read()", "done", reasoning="briefly", prompt_tokens=6, **about),
        Turn("submit(1)", "", cut=False, malformed=False, action_tokens=2),
    ):
        if turn.prompt_tokens:
            t.go_on([9] * turn.prompt_tokens)
        t.add_sample(Sample([2] * turn.action_tokens, [-0.1] * turn.action_tokens, "stop", 0))
        t.turns.append(turn)
    write_episodes(run / "episodes", 0, [t], [(t, 1.0)])
    main([str(run), "--out", str(tmp_path / "thinks.html")])
    visit = Visit(browser, tmp_path / "thinks.episodes.html", "desktop", "#episode=0.0.0")
    visit.page.wait_for_selector(".turn")
    thoughts = [visit.page.locator(".message.thought").nth(i).inner_text() for i in range(3)]
    assert visit.page.locator(".message.thought").count() == 3  # the last turn has none
    for text, words in zip(thoughts, (HOSTILE, "it goes on", "briefly"), strict=True):
        assert words in text
        assert "3 tokens" in text
        assert "Thought" in text
    assert "never closed, so there is no action" in thoughts[1]
    actions = [visit.page.locator(".message.action.trained").nth(i).inner_text() for i in range(4)]
    assert "open(a)" in actions[0]
    assert "2 tokens" in actions[0]  # of five, three are the thought's
    assert "after another prompt of 6 tokens" in actions[2]
    assert visit.page.locator(".bar .prompt").count() == 2
    assert "owned" not in visit.page.title()
    visit.close()


def test_the_list_says_nothing_of_tokens_that_an_older_version_did_not_log(browser: Any, tmp_path: Path) -> None:
    run = write_run(tmp_path / "older", updates=1)
    write_log(run, updates=1, tasks=1, group=2)
    log = run / "episodes" / "update-000000.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines:
        for name in ("advantage", "tokens", "action_tokens", "prompt_tokens"):
            del line[name]
    log.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    main([str(run), "--out", str(tmp_path / "older.html")])
    visit = Visit(browser, tmp_path / "older.episodes.html", "desktop", "#episode=0.0.0")
    visit.page.wait_for_selector(".turn")
    assert visit.page.inner_text("#row-0 .about") == "update 0 · 2 steps of 6"
    assert "not logged" in visit.page.inner_text(".facts")
    visit.close()


def test_a_budget_of_tokens_is_not_called_k(browser: Any, tmp_path: Path) -> None:
    run = write_run(tmp_path / "tokens", updates=1)
    write_log(run, updates=1, tasks=1, group=2)
    log = run / "episodes" / "update-000000.jsonl"
    log.write_text(log.read_text().replace('"horizon": 6', '"horizon": 50'))
    main([str(run), "--out", str(tmp_path / "tokens.html")])
    visit = Visit(browser, tmp_path / "tokens.episodes.html", "desktop", "#episode=0.0.1")
    visit.page.wait_for_selector(".turn")
    assert "stopped by the budget of tokens" in visit.page.inner_text(".facts")
    visit.close()


def test_a_text_with_very_many_hits_of_the_search_opens(browser: Any, tmp_path: Path) -> None:
    run = write_run(tmp_path / "many-hits", updates=1)
    write_log(run, updates=1, tasks=1, group=1)
    log = run / "episodes" / "update-000000.jsonl"
    log.write_text(log.read_text().replace("answer 1", "a" * 200_000))
    main([str(run), "--out", str(tmp_path / "many-hits.html")])
    visit = Visit(browser, tmp_path / "many-hits.episodes.html", "desktop", "#text=a&episode=0.0.0")
    visit.page.wait_for_selector(".turn")
    marks = visit.page.locator(".turn mark").count()
    assert 10_000 <= marks < 20_000
    visit.close()


def test_keys_and_the_browser_s_own_back_and_reload(browser: Any, made: Path) -> None:
    visit = Visit(browser, made / "many.episodes.html", "desktop")
    visit.page.wait_for_selector(".row")
    visit.set("from", "156")
    visit.waits_for(64)
    visit.page.focus("#list")
    visit.page.keyboard.press("ArrowDown")
    visit.page.wait_for_selector("#row-0[aria-selected=true]")
    visit.page.keyboard.press("ArrowDown")
    visit.page.wait_for_selector("#row-1[aria-selected=true]")
    visit.page.wait_for_function("() => document.querySelectorAll('.turn').length === 6")
    visit.page.reload()
    visit.page.wait_for_selector("#row-1[aria-selected=true]")
    visit.waits_for(64)  # the address keeps the filters
    visit.page.wait_for_function("() => document.querySelectorAll('.turn').length === 6")
    visit.page.go_back()
    visit.page.wait_for_selector("#row-0[aria-selected=true]")
    visit.close()


def test_html_in_an_observation_is_shown_and_not_run(browser: Any, made: Path) -> None:
    visit = Visit(browser, made / "report.episodes.html", "phone", "#episode=0.0.0")
    visit.page.wait_for_selector(".row", state="attached")
    runs = visit.page.locator("[name=run] option").count() - 1
    assert runs == 5
    hostile = visit.page.evaluate(
        "[...document.querySelectorAll('[name=run] option')].findIndex((o) => o.textContent === 'elastic, seed 0')"
    )
    visit.page.goto(
        f"{(made / 'report.episodes.html').as_uri()}#run={hostile - 1}&text=ONERROR&episode={hostile - 1}.0.0"
    )
    visit.page.wait_for_selector(".turn")
    assert HOSTILE in visit.page.inner_text("main")
    visit.waits_for(32)
    assert visit.page.locator("main mark").count() > 0
    assert "owned" not in visit.page.title()
    assert visit.page.locator("main img, main script").count() == 0
    assert visit.width() == WIDTHS["phone"][0]
    visit.close()


def test_the_page_s_policy_stops_a_script_that_was_missed(browser: Any, made: Path) -> None:
    visit = Visit(browser, made / "report.episodes.html", "desktop")
    visit.page.wait_for_selector(".row", state="attached")
    visit.page.evaluate(
        """() => {
          const script = document.createElement("script");
          script.textContent = "document.title = 'owned'";
          document.body.append(script);
        }"""
    )
    assert "owned" not in visit.page.title()
    assert any("Content Security Policy" in words for words in visit.complaints)
    visit.complaints.clear()
    visit.close()


@pytest.mark.parametrize("width", WIDTHS)
def test_no_number_of_a_table_breaks(browser: Any, made: Path, tmp_path: Path, width: str) -> None:
    kept = tmp_path / "a-folder-with-a-long-name" / "and-another-one-in-it" / "the-third-of-them"
    import_module("harness.evaluate").evaluate_policy("expert", tasks=2, out=kept, show=False)
    main([str(kept), str(made / "many"), "--out", str(tmp_path / "report.html"), "--episodes", "100"])
    visit = Visit(browser, tmp_path / "report.html", width)
    broken = """() => {
      document.querySelectorAll("details").forEach(part => { part.open = true; });
      const lines = cell => { const r = document.createRange(); r.selectNodeContents(cell); return r.getClientRects().length; };
      return [...document.querySelectorAll("td")].filter(cell => /^[-0-9.,% ()±—to\\u00a0]+$/.test(cell.textContent))
        .map(cell => [cell.textContent, lines(cell)]);
    }"""
    found = visit.page.evaluate(broken)
    assert len(found) > 10
    assert [text for text, lines in found if lines > 1] == []
