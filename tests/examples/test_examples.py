"""Each example runs, in a short setting, and does what its page says."""

import json
import os
from pathlib import Path

import numpy as np
import pytest

from harness.settings.section import filled

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.py") if path.stem not in ("drawing", "textworld"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_each_is_executable_and_says_its_command(path):
    assert os.access(path, os.X_OK)
    text = path.read_text()
    assert text.startswith("#!/usr/bin/env python\n")
    assert f"python examples/{path.name} " in text.split('"""')[1]
    assert f"({path.name})" in (ROOT / "examples" / "README.md").read_text()


def test_reinforce_learns_and_moves_k_from_both_sides(example, tmp_path):
    reinforce = example("reinforce", "torch", "matplotlib")
    high = reinforce.train("EH-Cabinet-v0", 50, seed=0, updates=25)
    assert high == reinforce.train("EH-Cabinet-v0", 50, seed=0, updates=25)
    k, success = np.array([list(row.values()) for row in high]).T
    assert success[-5:].mean() > success[:5].mean() + 0.2
    assert k[0] == 50 > k[-1]
    low = reinforce.train("EH-Cabinet-v0", 10, seed=0, updates=20)
    assert low[0]["horizon/k"] == 10 < low[-1]["horizon/k"]
    reinforce.main(["--updates", "2", "--out", str(tmp_path / "figure.svg")])
    assert (tmp_path / "figure.svg").read_text().endswith("</svg>\n")


def test_a_real_k_forgets_its_start_and_a_stored_integer_does_not(example, tmp_path):
    simulate = example("simulate")

    def end(**settings):
        return simulate.main(["--runs", "1", "--updates", "150", "--settings", json.dumps(settings)])[0, 112:, 0].mean()

    assert end(k0=10) == pytest.approx(end(k0=50), abs=0.5)
    assert end(k0=10, rounding="floor-state") < end(k0=50, rounding="floor-state") - 8
    # 70 % need 3 to 9 steps, 6 on average; the others are stopped at 9.
    rows = simulate.main(["--law", "gap", "--controller", "fixed", "--settings", '{"k0": 9}'])
    assert rows.mean(axis=(0, 1)) == pytest.approx([9, 0.7, 0.7 * 6 + 0.3 * 9], abs=0.05)
    lengths = [(3, True), (5, True), (9, False), (5, True), (8, True)]
    lines = [json.dumps({"length": length, "success": success}) for length, success in lengths]
    (tmp_path / "update-000000.jsonl").write_text("\n".join(lines))
    assert simulate.law_of_log(tmp_path) == pytest.approx([0, 0, 0.25, 0, 0.5, 0, 0, 0.25])


def test_an_agent_program_is_trained(example, tmp_path):
    tool_agent = example("tool_agent", "openai", "matplotlib")
    logs = tool_agent.main(["--k0", "10", "--updates", "1", "--out", str(tmp_path / "figure.svg")])
    [[[row]]] = logs.values()
    assert row["rollout/episodes"] == 64
    assert row["rollout/agent_failures"] == row["rollout/environment_errors"] == 0
    assert row["rollout/success"] > 0.1
    assert (tmp_path / "figure.svg").exists()


@pytest.mark.parametrize("processes", [False, True])
def test_sb3_moves_one_k_for_all_environments(example, tmp_path, processes):
    sb3_ppo = example("sb3_ppo", "stable_baselines3", "matplotlib")
    flags = ["--steps=2560", "--envs=2", "--size=5", "--k0=90", "--limits=15", f"--out={tmp_path / 'figure.svg'}"]
    runs = sb3_ppo.main([*flags, "--processes"] if processes else flags)
    (elastic,), (fixed,) = runs["elastic from K0 = 90"], runs["TimeLimit 15"]
    assert [steps for steps, *_ in elastic] == [steps for steps, *_ in fixed] == list(range(256, 2561, 256))
    assert {k for _, k, _ in fixed} == {15}
    assert elastic[0][1] == 90 > elastic[-1][1]
    assert sum(value for *_, value in elastic) > 0
    assert (tmp_path / "figure.svg").exists()


@pytest.fixture
def trl_grpo(example, monkeypatch):
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    module = example("trl_grpo", "trl", "tyro")
    recipe = module.from_recipe
    short = {"episodes": 100, "max_optimal_steps": 6, "loss_target": 0.3, "polish_batches": 0}
    monkeypatch.setattr(module, "from_recipe", lambda name: filled(recipe(name), {"warm_start": short}))
    return module


def test_trl_trains_on_the_cabinet_under_the_controller_s_k(trl_grpo, tmp_path):
    flags = ["--envs", "EH-Cabinet-v0", "--tasks-per-update", "4", "--updates", "4", "--min-successes", "1"]
    logs = trl_grpo.main([*flags, "--k0", "10", "50", "--out", str(tmp_path / "figure.svg")])
    for k0 in (10, 50):
        (log,) = logs["EH-Cabinet-v0", k0]
        assert [row["step"] for row in log] == [1, 2, 3, 4]
        assert [row["rollout/k"] for row in log[1:]] == [row["horizon/k"] for row in log[:-1]]
        assert log[0]["rollout/k"] == k0
        assert any(row["grad_norm"] > 0 for row in log)
        for row in log:
            assert row["completions/clipped_ratio"] == pytest.approx(row["rollout/truncated"])  # TRL sees the cut
            assert row["reward"] == pytest.approx(row["rollout/success"])
    assert logs["EH-Cabinet-v0", 10][0][-1]["horizon/k_real"] > 10
    assert logs["EH-Cabinet-v0", 50][0][-1]["horizon/k_real"] < 50
    assert (tmp_path / "figure.svg").exists()


@pytest.mark.campaign
@pytest.mark.usefixtures("bfcl_python")
def test_trl_trains_on_bfcl(trl_grpo):
    flags = ["--envs", "EH-BFCL-v0", "--updates", "1", "--k0", "5", "--no-warm-start"]
    (log,) = trl_grpo.main([*flags, "--tasks-per-update", "2", "--group-size", "2"])["EH-BFCL-v0", 5]
    assert log[0]["rollout/k"] == 5
    assert log[0]["rollout/length_mean"] > 1  # more than one turn
    assert log[0]["completions/clipped_ratio"] == log[0]["rollout/truncated"]
    assert log[0]["loss"] == 0  # without a success there is nothing to learn, and nothing fails


def test_an_agent_of_one_s_own_plays_an_episode(example, chat_server, capsys):
    llm_agent = example("llm_agent", "openai")
    with chat_server.serve(chat_server.cabinet_agent) as server:
        flags = ["--base-url", server.url, "--model", "cabinet-7b"]
        assert llm_agent.main(flags) is True
        assert "right\nsuccess after" in capsys.readouterr().out
        assert llm_agent.main([*flags, "--horizon", "2"]) is False
        assert "failure after 2 steps, truncated: True" in capsys.readouterr().out


@pytest.mark.campaign
def test_trl_tools_trains_a_clone_that_it_made(example, tmp_path, monkeypatch):
    monkeypatch.setenv("TRL_EXPERIMENTAL_SILENCE", "1")
    trl_tools, out = example("trl_tools", "trl", "tyro"), tmp_path / "figure.svg"
    short = ["--envs", "Taxi", "--clone-until", "0.5", "--updates", "2", "--tasks-per-update", "2", "--group-size", "2"]
    log = trl_tools.main([*short, "--k0", "5", "--out", str(out)])["Taxi", 5][0]
    assert [row["horizon/k"] for row in log] == [5.0, 5.0]
    assert all(0 < row["tools/call_frequency"] <= 5 for row in log)  # it has learnt to call tools
    assert out.exists()
