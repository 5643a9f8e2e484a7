"""What the options beyond the paper's controller do where the lengths stay: which leave a gap, which get a cold start going."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from eh_gym import FixedHorizon
from harness.experiments.simulate.beyond import CASES, LAWS, Case, play
from harness.experiments.simulate.lengths import LengthLaw
from harness.simulate_beyond import main


def end(name: str, law: str, seed: int = 0) -> dict[str, float]:
    """The last quarter of 100 updates of 128 episodes."""
    rows = play(CASES[name], LAWS[law], updates=100, episodes=128, seed=seed)[-25:]
    return dict(zip(("k", "success", "steps"), rows.mean(axis=0).tolist(), strict=True))


def test_an_episode_succeeds_if_its_k_lets_it_take_what_it_needs() -> None:
    law = LengthLaw("3 or 9", np.array([0, 0, 0.5, 0, 0, 0, 0, 0, 0.5]))
    rows = play(Case(lambda: FixedHorizon(5)), law, updates=200, episodes=10, seed=1)
    assert rows.mean(axis=0) == pytest.approx([5, 0.5, 4], abs=0.1)  # 3 steps, or stopped at 5
    assert (rows == play(Case(lambda: FixedHorizon(5)), law, updates=200, episodes=10, seed=1)).all()


def test_the_gap_holds_k_down_whatever_the_buffer_held_before() -> None:
    for name in ("the paper's, K0 = 10", "prefilled by 128 episodes"):
        assert end(name, "gap")["k"] < 19.5


def test_where_nothing_fits_into_k0_growth_or_an_evaluation_gets_it_going() -> None:
    assert end("K0 = 5", "appworld")["success"] == 0
    usual = end("the paper's, K0 = 10", "appworld")
    for name in ("K0 = 5, cold growth 1", "K0 = 5, prefilled"):
        assert end(name, "appworld")["k"] == pytest.approx(usual["k"], abs=1)


def test_a_k_for_each_kind_spares_the_short_ones_steps() -> None:
    one, each = end("the paper's, K0 = 10", "gap"), end("by kind", "gap")
    assert each["success"] == pytest.approx(one["success"], abs=0.01)
    assert each["steps"] < one["steps"] - 1


def test_the_command_prints_a_table_and_writes_it(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--updates", "3", "--episodes", "8", "--seeds", "2"]
    for name in ("a", "b"):
        main([*words, "--out", str(tmp_path / "new" / name)])
    rows = json.loads((tmp_path / "new" / "a").read_text())["rows"]
    assert [(row["law"], row["controller"]) for row in rows] == [(law, name) for law in LAWS for name in CASES]
    assert rows == json.loads((tmp_path / "new" / "b").read_text())["rows"]
    assert "by kind, cold growth 1" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--seeds", "0"])
    said = capsys.readouterr()
    assert "seeds must be >= 1, got 0" in said.out + said.err  # by us or by tyro, depending on its version


def test_a_folder_is_refused_before_anything_is_played(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("harness.simulate_beyond.compare", lambda _: pytest.fail("it was played"))
    with pytest.raises(SystemExit):
        main(["--out", str(tmp_path)])
    assert "out must be a file, got the folder" in capsys.readouterr().out
