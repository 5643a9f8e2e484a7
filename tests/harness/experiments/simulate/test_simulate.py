"""The simulated controller is ElasticHorizon run by run, and shows what the paper's own settings do."""

from __future__ import annotations

import json
import math
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eh_gym import ElasticHorizon, EpisodeOutcome
from eh_gym.errors import ConfigError
from harness.experiments.simulate.controller import elastic_runs, fixed_points, settling_updates, tail, targets
from harness.experiments.simulate.lengths import PAPER, LengthLaw, from_episodes, log_normal, two_part
from harness.simulate import Simulation, main, simulate

QUICK = {"runs": 5, "updates": 30, "episodes": 32, "deltas": (5.0, 10.0), "alphas": (0.1, 1.0), "groups": (1, 8)}


def one_by_one(needed: list[np.ndarray], see_all: bool = False, **arguments: Any) -> dict[str, np.ndarray]:
    """The same runs, each by a controller of its own that is told one episode after the other."""
    columns: dict[str, list[list[float]]] = {"k": [], "boundary": [], "success": [], "steps": []}
    for run in range(len(needed[0])):
        controller = ElasticHorizon(**arguments)
        row: dict[str, list[float]] = {"k": [controller.k_real], "boundary": [], "success": [], "steps": []}
        for lengths in needed:
            horizon = controller.horizon
            for n in lengths[run].tolist():
                if n <= horizon or see_all:
                    controller.record(EpisodeOutcome(n, max(n, horizon), True))
            row["boundary"].append(controller.update()["horizon/boundary"])
            row["k"].append(controller.k_real)
            row["success"].append(float(np.mean(lengths[run] <= horizon)))
            row["steps"].append(float(np.minimum(lengths[run], horizon).sum()))
        for name, values in row.items():
            columns[name].append(values)
    return {name: np.array(values) for name, values in columns.items()}


@settings(max_examples=50, deadline=None)
@given(data=st.data())
def test_every_run_equals_elastic_horizon_bit_by_bit(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 40))
    arguments: dict[str, Any] = {
        "k0": data.draw(st.integers(5, 50)),
        "alpha": data.draw(st.sampled_from([0.05, 0.1, 0.3, 1.0])),
        "delta": data.draw(st.sampled_from([0, 2.5, 10, 20])),
        "buffer_size": size,
        "min_successes": data.draw(st.integers(1, size)),
        "statistic": data.draw(st.sampled_from(["mean", "p50", "p75", "p90", "p95", "max"])),
        "rounding": data.draw(st.sampled_from(["floor", "nearest", "floor-state"])),
    }
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    longest = data.draw(st.integers(5, 70))
    # Updates of several sizes: some smaller than the buffer, some larger, one without episodes that end.
    needed = [rng.integers(1, longest, (4, n), endpoint=True, dtype=np.int16) for n in (3, 7, 90, 1, 25, 41)]
    needed.append(np.full((4, 3), 60, dtype=np.int16))
    see_all = data.draw(st.booleans())
    runs, expected = elastic_runs(needed, see_all=see_all, **arguments), one_by_one(needed, see_all, **arguments)
    for name, values in expected.items():
        np.testing.assert_array_equal(getattr(runs, name), values, err_msg=name)


@pytest.mark.parametrize(("rounding", "alpha"), [("floor", 0.7), ("floor-state", 0.3), ("nearest", 0.5)])
def test_whole_and_half_k_are_rounded_alike_for_all_pairs_of_k_and_target(rounding: Any, alpha: float) -> None:
    pairs = np.array([(k, target) for k in range(5, 51, 5) for target in range(5, 51)], dtype=np.int16)
    needed = [
        pairs[:, 1:],
        np.tile(np.arange(1, 51, dtype=np.int16), (len(pairs), 1)),
    ]  # the second shows the applied K
    arguments: dict[str, Any] = {"delta": 0, "buffer_size": 1, "min_successes": 1, "alpha": alpha, "rounding": rounding}
    runs = elastic_runs(needed, k0=pairs[:, 0], see_all=True, **arguments)
    for i, (k0, _) in enumerate(pairs.tolist()):
        alone = one_by_one([lengths[i : i + 1] for lengths in needed], True, k0=k0, **arguments)
        assert (runs.k[i] == alone["k"][0]).all()
        assert (runs.steps[i] == alone["steps"][0]).all()


def test_settings_of_their_own_for_each_run_are_runs_with_those_settings() -> None:
    rng = np.random.default_rng(0)
    needed = [PAPER["appworld"].draw(rng, 3, 20) for _ in range(30)]
    together = elastic_runs(needed, k0=[10, 20, 50], alpha=[0.1, 0.5, 1.0], delta=[0, 5, 20])
    for i, (k0, alpha, delta) in enumerate(((10, 0.1, 0), (20, 0.5, 5), (50, 1.0, 20))):
        alone = elastic_runs([lengths[i : i + 1] for lengths in needed], k0=k0, alpha=alpha, delta=delta)
        np.testing.assert_array_equal(together.k[i], alone.k[0])


def test_the_paper_s_controller_ends_where_it_was_measured_to_end() -> None:
    """200 updates of 128 episodes with the lengths of the paper's table: Algorithm 2 stalls, a real K does not."""

    def end(k0: int, **arguments: Any) -> float:
        rng = np.random.default_rng(k0)
        needed = (PAPER["appworld"].draw(rng, 100, 128) for _ in range(200))
        return float(tail(elastic_runs(needed, k0=k0, **arguments).k).mean())

    assert end(10, rounding="floor-state") == pytest.approx(18.4, abs=0.5)
    assert end(15, rounding="floor-state") == pytest.approx(18.4, abs=0.5)
    assert end(50, rounding="floor-state") == pytest.approx(29.2, abs=0.5)
    assert end(15, rounding="floor-state", delta=5) == 15
    for k0 in (10, 15, 50):
        assert end(k0) == pytest.approx(33.8, abs=0.5)
        assert end(k0, rounding="nearest") == pytest.approx(34.2, abs=0.5)


def test_algorithm_2_cannot_grow_where_the_headroom_is_below_one_over_alpha() -> None:
    # K + floor(alpha (target - K)) moves up only if target >= K + 1 / alpha, and the target is at most K + delta.
    result = simulate(Simulation(**{**QUICK, "alphas": (0.1, 0.2), "deltas": (4.0, 9.0), "k0": (10, 50)}))
    ends = {(row["alpha"], row["delta"]): row["floor_state_from_low"] for row in result["dead_band"]}
    assert ends[0.1, 4.0] == ends[0.1, 9.0] == ends[0.2, 4.0] == 10
    assert ends[0.2, 9.0] > 20


def test_grouped_tasks_scatter_p90_more() -> None:
    rows = simulate(Simulation(runs=20, updates=60, alphas=(0.1,), deltas=(10.0,), groups=(1, 16)))["groups"]
    assert rows[1]["boundary_std"] > 2 * rows[0]["boundary_std"]
    assert rows[1]["end_std"] > 2 * rows[0]["end_std"]


def test_a_gap_in_the_lengths_has_two_points_of_rest_and_the_start_chooses() -> None:
    law = two_part("gap", (3, 9), (25, 45), 0.3)
    low, high = fixed_points(targets(law, 10, 5, 50, "p90"))
    rng = np.random.default_rng(0)
    k = tail(elastic_runs((law.draw(rng, 2, 128) for _ in range(150)), k0=[10, 50]).k).mean(axis=1)
    assert (low, high) == (19, 48)
    assert k == pytest.approx([low, high], abs=0.5)


def test_where_k_comes_to_rest() -> None:
    # At 8 the target is 11, over 9, at 9 it is 8, back below: K shuttles across 9. At 20 it stays.
    assert fixed_points({8: 11.0, 9: 8.0, 10: 15.0, 20: 20.5}) == [9.0, 20.5]
    law = LengthLaw("two lengths", np.array([0, 0, 0.5, 0, 0, 0, 0.5]))
    assert targets(law, 1, 1, 8, "mean") == {3: 4, 4: 4, 5: 4, 6: 4, 7: 6, 8: 6}
    assert targets(law, 1, 1, 8, "p90") == {3: 4, 4: 4, 5: 4, 6: 4, 7: 8, 8: 8}


def test_settling_is_the_first_update_near_the_end() -> None:
    k = np.array([[10.0, 15, 19, 22, 20, 20, 20, 20], [20.0] * 8])
    assert settling_updates(k).tolist() == [2, 0]


@pytest.mark.parametrize("law", PAPER.values(), ids=PAPER)
def test_the_paper_s_quantiles_are_met(law: LengthLaw) -> None:
    least, mean, median, p90, most = {
        "AppWorld (paper's quantiles)": (9, 18.14, 14, 37.21, 50),
        "BFCL (paper's quantiles)": (1, 11.93, 11, 24.29, 50),
    }[law.name]
    assert (law.quantile(0), law.quantile(0.5), law.quantile(1)) == (least, median, most)
    assert law.quantile(0.9) == pytest.approx(p90, abs=0.5)
    assert law.mean() == pytest.approx(mean, abs=1.5)  # not fitted


def test_draws_follow_the_law_and_groups_need_the_same() -> None:
    law = log_normal("x", 4, 9, 20, 30)
    drawn = law.draw(np.random.default_rng(0), 50, 4000, group=4)
    assert drawn.shape == (50, 4000)
    assert (drawn.reshape(50, 1000, 4) == drawn.reshape(50, 1000, 4)[:, :, :1]).all()
    shares = np.bincount(drawn.ravel(), minlength=31)[1:] / drawn.size
    assert np.abs(shares - law.p).max() < 0.01
    assert (drawn.min(), drawn.max()) == (4, 30)


def test_an_episode_log_is_a_law(tmp_path: Any) -> None:
    rows = [(3, True), (5, True), (9, False), (5, True), (8, True)]
    for i in (0, 1):
        # JSON needs no escape for a line separator, and a killed evaluation leaves half a line.
        text = "".join(
            f'{{"task_id": "a\u2028b", "turns": [], "length": {n}, "success": {str(ok).lower()}}}\n'
            for n, ok in rows[i::2]
        )
        (tmp_path / f"update-{i}.jsonl").write_text(text + '{"task_id": "c"')
    assert from_episodes(tmp_path).p == pytest.approx([0, 0, 0.25, 0, 0.5, 0, 0, 0.25])
    assert from_episodes(tmp_path / "update-1.jsonl").p == pytest.approx([0, 0, 0, 0, 1.0])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"task_id": "a", "turns": [], "length": 3}\n', "an episode of .* has no success and length"),
        ('{"task_id": "a", "turns": []}\nrubbish\n', "line 2 of .* is no episode"),
        ('{"task_id": "a", "turns": [], "length": 3, "success": false}\n', "holds no success"),
        ("", "holds no success"),
    ],
)
def test_a_log_that_is_none_is_refused(tmp_path: Any, text: str, message: str) -> None:
    (tmp_path / "x.jsonl").write_text(text)
    with pytest.raises(ConfigError, match=message):
        from_episodes(tmp_path / "x.jsonl")
    with pytest.raises(ConfigError, match="is no episode log"):
        from_episodes(tmp_path / "missing.jsonl")


def test_a_log_that_is_no_text_is_refused(tmp_path: Any) -> None:
    (tmp_path / "x.jsonl").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="holds no success"):  # a line that never ended
        from_episodes(tmp_path / "x.jsonl")
    (tmp_path / "x.jsonl").write_bytes(b"\xff\xfe\n")
    with pytest.raises(ConfigError, match=r"x\.jsonl can't be read: line 1"):
        from_episodes(tmp_path / "x.jsonl")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--runs", "0"], "runs must be >= 1"),
        (["--k0", "3"], "k0 must be in k_min..k_max (5..50), got 3"),
        (["--alphas", "0.1", "2"], "alpha must be in (0, 1], got 2.0"),
        (["--deltas=-1"], "delta must be >= 0"),
        (["--delta", "nan"], "delta must be >= 0 steps, got nan"),
        (["--out", f"{__file__}/x"], "can't be made (Not a directory); give another --out"),
        (["--groups", "3"], "must be a multiple of every group, got 3"),
        (["--buffer-size", "10"], "min_successes must be <= buffer_size (10), got 20"),
        (["--law", "episodes"], "law episodes and --log go together"),
        (["--law", "log-normal", "--p90", "3"], "least - 0.5 < median < p90"),
        (["--law", "two-part", "--share-long", "2"], "0 <= share_long <= 1"),
        (["--law", "log-normal", "--longest", "60000"], "the longest length must be <= 32767, got 60000"),
    ],
)
def test_wrong_arguments_are_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2
    told = capsys.readouterr()
    assert message in " ".join((told.out + told.err).replace("│", " ").split())


@pytest.mark.parametrize("law", ["appworld", "two-part"])
def test_the_command_prints_tables_and_writes_figures(
    law: str, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [f"--{k}={v}" for k, v in QUICK.items() if isinstance(v, int)]
    main([*words, "--law", law, "--groups", "1", "8", "--out", str(tmp_path / "new")])
    shown = capsys.readouterr().out
    for title in ("where K ends", "the dead band", "episodes of a group"):
        assert title in shown
    result = json.loads((tmp_path / "new" / "simulation.json").read_text())
    assert result["settings"]["law"] == law
    assert len(result["settling"]) == 12
    assert {len(line) for row in result["settling"] for line in row["k_by_update"]} == {31}
    assert all(math.isfinite(row["end"]) for row in result["settling"])
    data = (tmp_path / "new" / "simulation.png").read_bytes()
    assert struct.unpack(">II", data[16:24]) == (1500, 1125)
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["simulation.json", "simulation.png"]


def test_a_buffer_beyond_all_successes_takes_no_memory() -> None:
    huge, enough = (simulate(Simulation(**QUICK, buffer_size=size)) for size in (10**11, 30 * 32))
    assert huge["settling"] == enough["settling"]


def test_the_same_seed_gives_the_same_tables() -> None:
    first, second, other = (simulate(Simulation(**QUICK, seed=seed)) for seed in (0, 0, 1))
    assert first == second
    assert first["settling"] != other["settling"]
