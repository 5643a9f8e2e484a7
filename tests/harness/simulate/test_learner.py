"""The simulated learner does what trained models did, and shows which controllers leave the false plateau."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from eh_gym.horizon import ElasticHorizon, EpisodeOutcome, HorizonController, ProbedHorizon
from eh_gym.horizon.controller import episode_horizon
from harness.simulate.learner import CASES, LONG, NEVER, Agent, Learner, live, main
from harness.simulate.lengths import PAPER, LengthLaw, two_part


def lives(name: str, seeds: int = 3) -> tuple[float, float, float]:
    """Mean steps, long tasks solved and K of one of the compared controllers."""
    found = [live(CASES[name](), Learner(), seed) for seed in range(seeds)]
    return tuple(float(np.mean([getattr(life, f) for life in found])) for f in ("steps", "long", "k"))  # type: ignore[return-value]


def test_it_locks_where_trained_models_locked() -> None:
    # Measured with a trained tiny model, K0 = 10: K 18.7 in 3 of 3 seeds, long tasks near 0, and .61 to .75 at a fixed 50.
    steps, long, k = lives("paper, K0 = 10")
    fixed_steps, fixed_long, _ = lives("fixed 50")
    assert k == pytest.approx(19, abs=0.5)
    assert long < 0.15
    assert fixed_long > 0.6
    assert steps / fixed_steps == pytest.approx(39 / 87, abs=0.1)


def test_probes_with_the_product_limit_leave_the_plateau_and_with_the_observed_lengths_do_not() -> None:
    assert lives("+ probes 1/8, observed")[2] < 20
    assert lives("+ probes 1/4, product-limit")[2] > 30


def test_probes_beside_a_low_k_cost_least() -> None:
    steps, long, k = lives("probes 3/8, product-limit P50 + 3")
    fixed_steps, fixed_long, _ = lives("fixed 50")
    assert steps < 0.7 * fixed_steps
    assert long > 0.9 * fixed_long
    assert k < 15


def static(make: Callable[[], HorizonController], law: LengthLaw) -> float:
    """The mean K of the last of 100 updates of 128 episodes."""
    controller, ks = make(), []
    rng = np.random.default_rng(0)
    for update in range(100):
        for i, n in enumerate(law.draw(rng, 1, 128)[0].tolist()):
            k = episode_horizon(controller, {}, 1000 * update + i)
            controller.record(EpisodeOutcome(min(n, k), k, n <= k, n > k))
        controller.update()
        ks.append(controller.horizon)
    return float(np.mean(ks[-25:]))


def test_a_gap_is_left_by_probes_with_the_product_limit_alone() -> None:
    law = two_part("gap", (3, 9), (25, 45), 0.3)
    aware: dict[str, Any] = {"estimator": "product-limit"}
    assert static(lambda: ElasticHorizon(10), law) < 19.5
    assert static(lambda: ElasticHorizon(10, **aware), law) < 19.5
    assert static(lambda: ProbedHorizon(ElasticHorizon(10), 50, 0.125), law) < 22
    assert static(lambda: ProbedHorizon(ElasticHorizon(10, **aware), 50, 0.125), law) > 40


def test_probes_with_the_product_limit_and_no_headroom_find_p90_itself() -> None:
    def make() -> HorizonController:
        return ProbedHorizon(ElasticHorizon(10, delta=0, estimator="product-limit", buffer_size=800), 50, 0.125)

    assert static(make, PAPER["appworld"]) == pytest.approx(PAPER["appworld"].quantile(0.9), abs=1.5)


def test_below_the_shortest_task_the_paper_s_controller_stays_for_ever_and_a_growing_start_does_not() -> None:
    assert static(lambda: ElasticHorizon(5), PAPER["appworld"]) == 5
    assert static(lambda: ElasticHorizon(5, cold_growth=1), PAPER["appworld"]) == pytest.approx(34, abs=1.5)


def test_lessons_are_the_mean_size_of_a_group_s_advantages() -> None:
    agent = Agent(Learner(group=4), np.random.default_rng(0))
    success = np.array([1, 0, 0, 0, 1, 1, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0], dtype=bool)
    long = np.repeat([True, False, True, True], 4)
    agent.learn(success, long)

    def advantages(rewards: np.ndarray) -> float:
        return float(np.abs((rewards - rewards.mean()) / rewards.std()).mean())

    of_long, of_short = advantages(success[:4]), advantages(success[4:8])
    assert agent.long_lessons == pytest.approx(of_long)
    assert agent.lessons == pytest.approx(of_long + of_short)


def test_lessons_make_long_tasks_shorter_and_fewer_get_lost() -> None:
    untrained, trained = (Agent(Learner(), np.random.default_rng(0), lessons, lessons) for lessons in (0.0, 200.0))
    before, long = untrained.needed(500)
    after, _ = trained.needed(500)
    assert np.mean(before == NEVER) == pytest.approx(0.5, abs=0.03)
    assert np.mean(after == NEVER) == pytest.approx(0.05 + 0.45 / 32, abs=0.02)
    assert np.median(before[long & (before < NEVER)]) > 60
    assert np.median(after[long & (after < NEVER)]) < 25
    assert min(before[long]) >= LONG > max(np.minimum(before, 9)[~long])


def test_a_prefilled_controller_has_heard_and_paid_for_the_evaluation() -> None:
    settings = Learner(updates=1)
    controller = ElasticHorizon(10, buffer_size=1000, min_successes=1)
    paid = live(controller, settings, 0, prefill=16).steps
    assert max(controller.state_dict()["horizons"]) == 50
    assert paid > 2 * live(ElasticHorizon(10), settings, 0).steps


def test_the_command_prints_and_writes_its_table(tmp_path: Any, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "table.json"
    main(["--seeds", "2", "--updates", "3", "--out", str(out)])
    rows = json.loads(out.read_text())["rows"]
    assert [row["controller"] for row in rows] == list(CASES)
    assert rows[0]["steps"] == 1
    assert "paper, K0 = 10" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"), [(["--seeds", "0"], "seeds must be >= 1"), (["--lost", "0"], "lost in [0.05, 1)")]
)
def test_wrong_arguments_are_refused(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(words)
    told = capsys.readouterr()
    assert stop.value.code == 2
    assert message in " ".join((told.out + told.err).replace("│", " ").split())
