"""harness.benchmark: greedy and sampled episodes, what they cost, scores beside published ones, files; a stop and going on."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import harness.report
from eh_gym.errors import ConfigError
from harness.benchmark import benchmark, main, preset, runs_of
from harness.evaluation.scores import benchmark_markdown
from harness.run.episode_log import read_episodes
from harness.settings.evaluate import Evaluation

QUIET = Console(quiet=True)


def wanted(env: str = "EH-BFCL-v0", **settings: Any) -> Evaluation:
    return dataclasses.replace(preset(["--env", env]), **settings)


def play(**settings: Any) -> Any:
    return benchmark(wanted(**settings), QUIET)


@pytest.mark.usefixtures("bfcl_python")
def test_the_expert_scores_100_on_bfcl_and_the_files_are_there(tmp_path: Path) -> None:
    results = play(policy="expert", tasks=3, out=tmp_path / "b", env_args='{"categories": ["miss_func"], "workers": 1}')
    assert results["all-greedy"].category_mean == 1.0
    page = (tmp_path / "b" / "scores.md").read_text()
    assert "| expert | mean of the categories | 100.0 |" in page
    assert "policy expert, 3 tasks x 1" in page
    assert '{"prompt": "official", "categories": ["miss_func"], "workers": 1}' in page
    assert "| *Qwen3-8B (Prompt)* | mean of the categories | 33.38 | | BFCL's leaderboard, 2025-12-16: " in page
    written = list((tmp_path / "b" / "bfcl").rglob("*_result.json"))
    assert [file.name for file in written] == ["BFCL_v4_multi_turn_miss_func_result.json"]
    report = (tmp_path / "b" / "report.html").read_text()
    assert "category miss_func" in report
    assert "Qwen3-8B (Prompt)" in report
    assert page.index("not official: 3 of 200 tasks") < page.index("### All tasks") < page.index("Qwen3-8B")
    assert report.index("not official: 3 of 200 tasks") < report.index("Qwen3-8B")
    harness.report.main([str(tmp_path / "b"), "--out", str(tmp_path / "page.html")])
    assert "all-greedy" in (tmp_path / "page.html").read_text()


def test_an_endpoint_plays_greedily_and_sampled_and_goes_on_after_a_stop(chat_server: Any, tmp_path: Path) -> None:
    pytest.importorskip("openai")
    settings = {
        "env": "EH-Cabinet-v0",
        "model": "cabinet-7b",
        "tasks": 3,
        "rollouts": 2,
        "out": tmp_path / "b",
        "slots": 2,
    }
    with chat_server.serve(chat_server.cabinet_agent) as server:
        first = play(policy="openai", base_url=server.url, **settings)
        asked = len(server.requests)
        temperatures = {request["temperature"] for request in server.requests}
        assert play(policy="openai", base_url=server.url, **settings) is not None
        assert len(server.requests) == asked  # nothing is played twice
    assert temperatures == {0.0, 1.0}
    assert {name: (r.mean_at_k, r.rollouts) for name, r in first.items()} == {
        "test-greedy": (1.0, 1),
        "test-sampled": (1.0, 2),
    }
    lines = read_episodes(tmp_path / "b" / "test-greedy" / "episodes" / "evaluation.jsonl")
    turns = [turn for line in lines for turn in line["turns"]]
    assert all(turn["prompt_tokens"] > 0 and turn["action_tokens"] > 0 and turn["latency_s"] > 0 for turn in turns)
    assert f"Cost: {asked:,} requests" in (tmp_path / "b" / "scores.md").read_text()


def test_an_endpoint_needs_no_torch(chat_server: Any, tmp_path: Path) -> None:
    pytest.importorskip("openai")
    code = (
        "import sys; from harness.benchmark import main; main(sys.argv[1:]); "
        "print(sorted(m for m in ('torch', 'transformers') if m in sys.modules))"
    )
    words = ["--model", "m", "--env", "EH-Cabinet-v0", "--tasks", "1", "--rollouts", "0", "--out", str(tmp_path / "b")]
    with chat_server.serve(chat_server.cabinet_agent) as server:
        result = subprocess.run([sys.executable, "-c", code, server.url, *words], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"rollouts": -1}, "rollouts"),
        ({"temperature": 0.0}, "--rollouts 0"),
        ({"model": "m"}, "--policy openai"),
    ],
)
def test_wrong_flags_are_refused_before_anything_is_played(flags: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        play(policy="/no/such/model", env="EH-Cabinet-v0", **flags)


def test_an_endpoint_needs_the_name_of_its_model() -> None:
    with pytest.raises(ConfigError, match="--model NAME"):
        runs_of(wanted(policy="openai", base_url="http://127.0.0.1:1/v1"))


def test_the_official_sets_are_the_benchmarks_own() -> None:
    bfcl = runs_of(wanted(policy="m"))
    assert [(run.split, run.name, run.evaluation.rollouts) for run in bfcl] == [
        ("all", "greedy", 1),
        ("all", "sampled", 8),
    ]
    assert (bfcl[0].evaluation.horizon, json.loads(bfcl[0].evaluation.env_args)) == (200, {"prompt": "official"})
    chance = runs_of(wanted("EH-Cabinet-v0", policy="random"))
    assert [(run.name, run.evaluation.rollouts) for run in chance] == [("sampled", 8)]  # no action of its is greedy
    appworld = runs_of(wanted("EH-AppWorld-v0", policy="openai", model="m", rollouts=0))
    assert [run.split for run in appworld] == ["test_normal", "test_challenge"]


def test_appworld_s_measures_have_its_names() -> None:
    part = {"kind": "difficulty", "name": "1", "mean_at_k": 0.5, "mean_interval": (0.2, 0.8), "scenarios_at_k": 0.25}
    result = {"rollouts": 1, "tasks": 4, "mean_at_k": 0.5, "mean_interval": (0.2, 0.8), "category_mean": None}
    result |= {"scenarios_at_k": 0.25, "parts": [part]}
    settings = {"env": "EH-AppWorld-v0", "split": "test_normal", "temperature": 0.0, "horizon": 50, "env_args": "{}"}
    page = benchmark_markdown("m", [(settings, result)], "nothing")
    assert "| m | tasks (TGC) | 50.0 | 20.0 to 80.0 | greedy, 4 tasks x 1, K = 50, {} |" in page
    assert "| m | scenarios (SGC) | 25.0 |  |" in page
    assert "| m | difficulty 1, scenarios | 25.0 |  |" in page
    assert "| *LOOP, Qwen2.5-32B* | tasks (TGC) | 72.6 | | AppWorld's leaderboard, 2025-04-09: " in page


def test_the_player_must_be_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--rollouts", "0"])
    assert "the first word must be a model" in capsys.readouterr().out
