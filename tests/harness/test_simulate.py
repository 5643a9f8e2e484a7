"""A simulated run is the real controller's, and shows what the paper's settings do with the lengths of its table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eh_gym.errors import ConfigError
from harness.planning.length_laws import GAP, PAPER
from harness.simulate import Simulation, length_law, main, simulate


def end(**settings: Any) -> list[float]:
    """K, success and steps in the last quarter of 150 updates of 128 episodes."""
    rows: np.ndarray = simulate(Simulation(**{"updates": 150, "runs": 1, "k0": 10, **settings}))
    mean: list[float] = rows[0, 112:].mean(axis=0).tolist()
    return mean


@pytest.mark.parametrize(
    ("law", "quantiles", "mean"), [("appworld", (9, 14, 37.21, 50), 18.14), ("bfcl", (1, 11, 24.29, 50), 11.93)]
)
def test_the_laws_have_the_papers_quantiles(law: str, quantiles: tuple[float, ...], mean: float) -> None:
    found = PAPER[law]
    assert [found.quantile(q) for q in (0, 0.5, 0.9, 1)] == pytest.approx(quantiles, abs=0.5)
    assert found.p @ np.arange(1, len(found.p) + 1) == pytest.approx(mean, abs=1.5)  # not fitted


def test_an_episode_succeeds_if_its_k_lets_it_take_what_it_needs() -> None:
    # 70 % need 3 to 9 steps, 6 on average; the others are stopped at 9.
    assert GAP.p.sum() == pytest.approx(1)
    assert end(law="gap", wrapper="fixed", k0=9) == pytest.approx([9, 0.7, 0.7 * 6 + 0.3 * 9], abs=0.05)


def test_a_real_k_forgets_its_start_and_the_papers_stored_integer_does_not() -> None:
    assert end(k0=10)[0] == pytest.approx(end(k0=50)[0], abs=0.5)
    assert end(k0=10, rounding="floor-state")[0] < end(k0=50, rounding="floor-state")[0] - 8


def test_a_gap_holds_k_down_and_a_k_for_each_kind_with_cold_growth_crosses_it() -> None:
    assert end(law="gap")[0] < 19.5
    assert end(law="gap", horizon_key="kind", cold_growth=1.0)[1] == 1


def test_the_successes_of_an_episode_log_are_a_law(tmp_path: Path) -> None:
    rows = [(3, "true"), (5, "true"), (9, "false"), (5, "true"), (8, "true")]
    rest = '"task_id": "a", "turns": [], "horizon": 9, "end": "terminated"'
    lines = [f'{{{rest}, "length": {n}, "success": {ok}}}\n' for n, ok in rows]
    (tmp_path / "update-0.jsonl").write_text("".join(lines))
    assert length_law(Simulation(log=tmp_path)).p == pytest.approx([0, 0, 0.25, 0, 0.5, 0, 0, 0.25])
    for broken in ("rubbish\n", lines[2], ""):
        (tmp_path / "update-0.jsonl").write_text(broken)
        with pytest.raises(ConfigError, match="--log"):
            length_law(Simulation(log=tmp_path))
    (tmp_path / "evaluation").mkdir()
    with pytest.raises(ConfigError, match="without an episode log"):
        length_law(Simulation(log=tmp_path / "evaluation"))


@pytest.mark.parametrize(
    "settings",
    [
        *({"runs": 0}, {"group": 3}, {"k0": 3}, {"budget_hint": "{left} left"}),
        *({"wrapper": wrapper} for wrapper in ("none", "tokens", "task", "toggle")),
    ],
    ids=str,
)
def test_wrong_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        Simulation(**settings)


def test_the_command_prints_the_same_table_for_the_same_seed(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--updates", "12", "--episodes", "32", "--runs", "2", "--group", "8"]
    tables = []
    for seed in ("0", "0", "1"):
        main([*words, "--seed", seed])
        tables.append(capsys.readouterr().out)
    assert tables[0] == tables[1] != tables[2]
    assert "9 to 11" in tables[0]  # the last quarter


def test_a_flag_that_the_horizon_does_not_read_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--wrapper", "linear", "--k0", "30"])
    assert "--k0 is for --wrapper elastic or fixed" in capsys.readouterr().out
