"""The episodes' page as a file: everything is in it, in small compressed parts; nothing of it is markup."""

from __future__ import annotations

import base64
import gzip
import html
import json
import re
from pathlib import Path
from typing import Any

import pytest

from eh_gym.errors import ConfigError, StateError
from harness.experiments.report.runs import read_suites
from harness.experiments.report.trajectories import Episodes, episode_logs, write_trajectories

from .conftest import HOSTILE, write_log, write_run


def page(*folders: Path, most: int = 10_000) -> tuple[Episodes, str]:
    out = folders[0].parent / "page.html"
    made = write_trajectories(episode_logs(read_suites(folders), []), out, report="report.html", most_episodes=most)
    return made, out.read_text() if out.exists() else ""


def data(text: str, name: str) -> Any:
    (packed,) = re.findall(rf'<script type="text/plain" id="{name}"[^>]*>([^<]*)</script>', text)
    return json.loads(gzip.decompress(base64.b64decode(packed)))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = write_run(tmp_path / "run", updates=5)
    write_log(folder, updates=5, tasks=10, hostile=True)
    return folder


def test_every_episode_is_there_as_it_was_logged(run: Path) -> None:
    made, text = page(run)
    assert made == Episodes(5 * 80, 5 * 80)
    index = data(text, "index")
    assert index["parts"] == [64, 16] * 5
    shown = [e for i in range(10) for e in data(text, f"part-{i}")]
    logged = [json.loads(x) for path in sorted(run.glob("episodes/*.jsonl")) for x in path.read_text().splitlines()]
    columns = index["columns"]
    for i, episode in enumerate(logged):
        assert shown[i]["turns"] == episode["turns"]
        assert index["tasks"][columns["task"][i]] == episode["task_id"]
        for name in ("update", "group", "horizon", "length", "reward", "success", "end", "tokens", "advantage"):
            assert columns[name][i] == episode[name]
        assert columns["in_loss"][i] == (episode["advantage"] is not None)
    assert data(text, f"system-{logged[0]['system_prompt']}") == "The rules."


def test_no_text_of_an_episode_is_markup(run: Path) -> None:
    _, text = page(run)
    assert HOSTILE in json.dumps([data(text, "part-0")], ensure_ascii=False).replace('\\"', '"')
    assert "owned" not in text
    assert "onerror" not in text


def test_nothing_outside_the_file_is_needed(run: Path) -> None:
    _, text = page(run)
    own = re.sub(r'<script type="text/plain"[^>]*>[^<]*</script>', "", text)
    assert not re.findall(r"https?:|\bsrc=|<link|@import|url\(", own)
    assert "default-src 'none'" in html.unescape(own)


def test_long_episodes_get_parts_of_their_own(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "run", updates=1)
    write_log(folder, updates=1, tasks=1)
    (log,) = folder.glob("episodes/*.jsonl")
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines[:3]:
        line["turns"][0]["observation"] = "x" * 700_000
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert data(page(folder)[1], "index")["parts"] == [1, 1, 6]


def test_of_too_many_episodes_whole_updates_are_left_out_evenly(tmp_path: Path) -> None:
    folders = [write_run(tmp_path / name, updates=9) for name in ("a", "b")]
    write_log(folders[0], updates=9, tasks=1)
    write_log(folders[1], updates=3, tasks=1)
    made, text = page(*folders, most=8 * 4)
    assert made == Episodes(8 * 4, 8 * 12)
    columns = data(text, "index")["columns"]
    assert sorted({*zip(columns["run"], columns["update"], strict=True)}) == [(0, 0), (0, 4), (0, 8), (1, 2)]
    assert 'data-logged="96"' in text
    assert page(*folders, most=1)[0].shown == 16  # at least the last update of every run
    with pytest.raises(ConfigError, match="most episodes must be"):
        page(*folders, most=0)


def test_the_groups_of_an_evaluation_are_its_tasks(tmp_path: Path) -> None:
    """The log counts them from 0 in each command, so that those of `--every 2` were put into groups of other tasks."""
    folder = write_run(tmp_path / "run", updates=1)
    write_log(folder, updates=1, tasks=2)
    (log,) = folder.glob("episodes/*.jsonl")
    lines = [json.loads(line) | {"update": None, "group": 0} for line in log.read_text().splitlines()]
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    columns = data(page(folder)[1], "index")["columns"]
    assert columns["group"] == columns["task"] == [0] * 8 + [1] * 8


def test_runs_without_a_log_make_no_page(tmp_path: Path) -> None:
    assert page(write_run(tmp_path / "run", updates=2)) == (Episodes(0, 0), "")


def test_a_torn_line_is_dropped_and_a_damaged_one_named(run: Path) -> None:
    log = run / "episodes" / "update-000004.jsonl"
    whole = log.read_bytes()
    log.write_bytes(whole[:-5])
    assert page(run)[0].shown == 399
    log.write_bytes(whole.replace(b"{", b"", 1))
    with pytest.raises(StateError, match=r"line 1 of .*update-000004.jsonl"):
        page(run)
    assert not list(run.parent.glob("*.part")) or data((run.parent / "page.html").read_text(), "index")


def test_a_reward_that_is_not_finite_is_shown_as_unknown(run: Path) -> None:
    log = run / "episodes" / "update-000000.jsonl"
    log.write_text(log.read_text().replace('"reward": 1.0', '"reward": NaN', 1))
    assert data(page(run)[1], "index")["columns"]["reward"][:2] == [None, 0.0]


def test_the_same_runs_give_the_same_bytes(run: Path) -> None:
    assert page(run) == page(run)
