"""`python -m harness.report` as a whole: pages that stand alone, whatever the runs are like; also in a browser."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from chromium import chromium
from made_up_runs import HOSTILE, write_log, write_run, write_sweep

from harness.evaluate import main as evaluate
from harness.records.files import lock_folder
from harness.report.__main__ import main
from harness.report.report import figures


class _Elements(HTMLParser):
    def __init__(self, text):
        super().__init__()
        self.elements = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data

    def of(self, tag, name):
        return [str(attributes[name]) for found, attributes in self.elements if found == tag and name in attributes]


def report(*paths, out, most=500):
    main([*map(str, paths), "--out", str(out), "--episodes", str(most)])
    return _Elements(out.read_text())


def episodes(*paths, out, most=500):
    report(*paths, out=out, most=most)
    return _Elements(out.with_suffix(".episodes.html").read_text())


def test_a_sweep_s_report(sweep, tmp_path):
    out = sweep(seeds=2, updates=3, only=("saturation", "convergence", "comparison"))
    write_log(out / "runs" / "convergence-0-seed0", updates=2, tasks=1)
    page = report(out, out=tmp_path / "made" / "report.html")
    assert len(page.of("img", "src")) == 3 + 4 + 5
    assert all(source.startswith("data:image/svg+xml;base64,") for source in page.of("img", "src"))
    assert all(len(words) > 40 for words in page.of("img", "alt"))
    assert "Plateau: K from" in page.text
    assert "paper: BFCL 14B" in page.text
    assert "73.62 / 80.49" in page.text
    assert "16 of 16 logged episodes" in page.text
    links, ids = page.of("a", "href"), page.of("h2", "id")
    assert "report.episodes.html" in links
    assert any(link.startswith("report.episodes.html#run-") for link in links)
    assert {link[1:] for link in links if link.startswith("#")} == set(ids)


def test_the_pages_need_no_other_file_and_names_from_outside_are_text(sweep, tmp_path):
    out = sweep(seeds=1, updates=2, only=("ema",))
    manifest = out / "suites" / "ema.json"
    said = json.loads(manifest.read_text())
    said["model"] = said["env"] = said["arms"][0]["label"] = HOSTILE
    said["arms"][1]["runs"][0]["folder"] += "-gone"
    said["arms"][1]["label"] = HOSTILE + "2"
    manifest.write_text(json.dumps(said))
    write_log(out / "runs" / "ema-0-seed0", updates=1, tasks=1, hostile=True)
    for page in (report(out, out=tmp_path / "r.html"), episodes(out, out=tmp_path / "r.html")):
        assert HOSTILE in page.text
        assert len([tag for tag, _ in page.elements if tag == "script"]) == (page.of("form", "autocomplete") == ["off"])
        assert not [tag for tag, _ in page.elements if tag in ("link", "iframe", "object")]
        assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
        assert all(address.startswith(("data:", "#", "r.")) for address in page.of("img", "src") + page.of("a", "href"))


def test_runs_that_were_killed_are_reported_as_far_as_they_got(tmp_path, capsys):
    torn = write_run(tmp_path / "torn", updates=6, ended=False)
    log = torn / "metrics.jsonl"
    log.write_bytes(log.read_bytes()[:-20])
    empty = write_run(tmp_path / "empty", updates=6, ended=False, seed=1)
    (empty / "metrics.jsonl").unlink()
    none = tmp_path / "none"
    (none / "checkpoints").mkdir(parents=True)
    page = report(torn, none, empty, out=tmp_path / "report.html")
    assert capsys.readouterr().out.startswith(f"skipped: no run in {none}\n")
    with pytest.raises(SystemExit):
        report(none, out=tmp_path / "report.html")
    assert "none is not a run: it has no config.json" in capsys.readouterr().out
    assert "torn: 5 of 6 updates" in page.text
    assert "empty: no metrics yet" in page.text
    assert "No episodes were logged." in page.text
    assert len(page.of("img", "src")) == 5


@pytest.mark.parametrize(("split", "told"), [("mini", True), ("all", True), ("train", False)])
def test_an_evaluation_on_the_training_split_is_labelled(tmp_path, split, told):
    run = write_run(tmp_path / "run", split=split, eval_split="mini")
    evaluation = json.loads((run / "evaluation.json").read_text())
    evaluation["after"]["sampled"]["tasks"] = 12
    (run / "evaluation.json").write_text(json.dumps(evaluation))
    text = report(run, out=tmp_path / "report.html").text
    assert "held-out: 12 tasks x k" in text
    assert ("of the split that the runs train on" in text) == told


def test_the_list_has_the_state_of_each_run_and_how_to_resume_it(tmp_path, capsys, monkeypatch):
    clone = tmp_path / "cache" / "clones" / "abc"
    clone.mkdir(parents=True)
    (clone / "model.safetensors").write_bytes(bytes(200_000))
    monkeypatch.setenv("EH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    stopped = write_run(Path("runs", "my stopped"), updates=3, ended=False)
    (stopped / "config.json").write_text((stopped / "config.json").read_text().replace('"updates": 3', '"updates": 9'))
    write_run(Path("runs", "sweep", "runs", "ended"), updates=3)
    write_run(Path("runs", "running"), ended=False)
    with lock_folder(Path("runs", "running"), ""):
        main(["--list"])
    text = capsys.readouterr().out
    states = (
        r"3 of 9 +\d+ .* stopped .* runs/my stopped",
        "3 of 3 .* ended .*/ended",
        "12 of 12 .* running .*/running",
    )
    for line in ("0.2 MB  abc", *states):
        assert re.search(line, text)
    assert text.endswith("\nresume: python -m harness.grpo --resume 'runs/my stopped'\n")
    main(["--list", "runs"])
    assert "abc" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--list", "nowhere"], "no folder .*nowhere"),
        (["nowhere"], "no folder .*nowhere"),
        (["nowhere", "--out", "metrics.jsonl"], r"out must .*\.html.*--out"),
        ([], "name run folders"),
        (["run", "--out", "/proc/x.html"], "error: the folder /proc can't be .*; give another --out"),
        (["run", "--out", f"{'x' * 250}.html"], "error: the page x.* can't be written .*; give another --out"),
    ],
)
def test_wrong_arguments_end_the_command_with_one_line(words, message, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    write_run(Path("run"), updates=3)
    with pytest.raises(SystemExit) as stopped:
        main(words)
    assert stopped.value.code == 2
    assert re.search(message, capsys.readouterr().out)


def test_an_evaluation_has_a_saturation_curve(tmp_path):
    folder = write_run(tmp_path / "a", updates=8)
    evaluate(["--policy", "expert", "--tasks", "9", "--horizon", "12", "--out", str(tmp_path / "evaluation")])
    kept = json.loads((result := tmp_path / "evaluation" / "result.json").read_text())
    kept["result"]["parts"] = [{"kind": "kind", "name": "mms", "mean_at_k": 0.25}]
    result.write_text(json.dumps(kept))
    page = report(folder, tmp_path / "evaluation", out=tmp_path / "report.html")
    assert "mms %" in page.text
    curves = [words for words in page.of("img", "alt") if "within K steps" in words]
    assert [words.partition("by K. ")[2] for words in curves] == ["K = 12: 88.9 %."]
    shown = _Elements("".join(f._repr_html_() for f in figures(folder, tmp_path / "evaluation")))
    assert shown.of("img", "src") == page.of("img", "src")  # a notebook has the same figures


def test_an_evaluation_that_is_kept_beside_or_in_a_run_does_not_hide_it(tmp_path):
    run = write_run(tmp_path / "run", updates=1)
    for folder in (run, tmp_path):
        evaluate(["--policy", "expert", "--tasks", "1", "--out", str(folder / "evaluation")])
    assert "1 run on" in report(run, out=tmp_path / "report.html").text
    with pytest.raises(SystemExit):
        report(tmp_path, out=tmp_path / "report.html")  # says that it holds runs


def test_the_report_is_by_default_where_the_runs_are(tmp_path, monkeypatch, capsys):
    for seed, name in enumerate("ab"):
        write_run(tmp_path / "runs" / name, updates=1, seed=seed)
    monkeypatch.chdir(tmp_path)
    both = ["runs/a", "runs/b"], tmp_path / "runs"
    for folders, place in ((["runs/a"], "runs/a"), both, ([*both[0], "runs/report.html"], both[1])):
        main(folders)
        assert capsys.readouterr().out.startswith(f"{place}/report.html")


def test_every_episode_can_be_read_as_it_was_logged(tmp_path):
    folder = write_run(tmp_path / "run", updates=2)
    write_log(folder, updates=2, tasks=2)
    page = episodes(folder, out=tmp_path / "r.html")
    assert len(page.of("details", "id")) == 2 * 2 * 8
    words = ("train-001-01", "open(1)", "answer 5", "start 0 1", "The rules.", "Not in the loss", "advantage +2.600")
    assert [text for text in words if text not in page.text] == []
    assert page.of("details", "data-verdict")[:2] == ["success", "cut off"]


def test_of_too_many_episodes_whole_updates_are_left_out_evenly(tmp_path):
    folders = [write_run(tmp_path / name, updates=9) for name in ("a", "b")]
    write_log(folders[0], updates=9, tasks=1)
    write_log(folders[1], updates=3, tasks=1)
    page = episodes(*folders, out=tmp_path / "r.html", most=8 * 4)
    assert "32 of 96 logged episodes" in page.text
    assert sorted(set(re.findall(r"train-(\d+)-", page.text))) == ["000", "002", "004", "008"]
    assert len(episodes(*folders, out=tmp_path / "r.html", most=1).of("details", "id")) == 16  # the last update of each


@pytest.mark.parametrize("width", [1280, 390])
def test_in_a_browser_both_pages_fit_and_the_search_finds(tmp_path, width):
    sweep = write_sweep(tmp_path / "sweep", seeds=1, updates=4, only=("comparison",))
    write_log(sweep / "runs" / "comparison-4-seed0", updates=2, tasks=2, hostile=True)
    report(sweep, out=tmp_path / "report.html")
    with chromium() as browser:
        page = browser.new_page(viewport={"width": width, "height": 800})
        complaints = []
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto((tmp_path / "report.html").as_uri())
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.goto(f"{(tmp_path / 'report.episodes.html').as_uri()}#episode-4-9")
        assert page.locator("#episode-4-9 pre").last.is_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.fill("#search", "start 1 0")
        page.select_option("#verdict", "success")
        assert page.inner_text("#count") == "1 of 32 episodes"
        assert page.locator("details.episode:visible").count() == 1
        assert page.title() == "Episodes · report.html"  # and not "owned"
        assert complaints == []
