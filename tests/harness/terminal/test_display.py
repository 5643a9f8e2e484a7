import pytest
from rich.console import Console

from eh_gym import ElasticHorizon
from harness.records.glossary import GLOSSARY
from harness.settings.grpo import from_recipe
from harness.settings.section import changed
from harness.terminal.display import Display
from harness.terminal.texts import Table, print_table
from harness.types.trajectory import Trajectory


def test_texts_with_brackets_are_printed_as_they_are(tmp_path, capsys):
    display = Display(Console(width=200))
    display.note("no [qwen] [/x]")
    display.plan(changed(from_recipe("quickstart"), model="/models/[exp]/[/m]"), tmp_path, resume=False)
    print_table(Table("", ("", "[/a]"), [("", "[/b]")]), Console())
    out = capsys.readouterr().out
    assert "no [qwen] [/x]" in out
    assert all(text in out for text in ("[/a]", "[/b]"))
    assert "/models/[exp]/[/m]" in out


def test_a_controller_of_a_program_is_shown_as_it_is(tmp_path, capsys):
    controller = ElasticHorizon(k0=7, k_max=30)
    Display(Console(width=300)).plan(from_recipe("quickstart"), tmp_path, resume=False, controller=controller)
    out = capsys.readouterr().out
    assert repr(controller) in out
    assert "K = 50 (evaluation.horizon, not the controller's)" in out


@pytest.mark.parametrize(("first", "header"), [(2, True), (3, False)])
def test_a_run_without_an_update_left_has_no_table(first, header, capsys):
    with Display(Console(width=200)).updates(first, 3):
        pass
    assert ("zero adv" in capsys.readouterr().out) == header


@pytest.mark.parametrize(("reward", "earned"), [(0.55, "0.55"), (-2.0, "0"), (0.0, ""), (1.0, "")])
def test_rewards_that_reach_no_threshold_are_told_once(reward, earned, capsys):
    m = dict.fromkeys(GLOSSARY, 0.0)
    episodes = [Trajectory("t", 0, reward=r, success=r >= 1, threshold=1.0) for r in (reward, 0.0)]
    with Display(Console(width=200)).updates(2, 12) as bars:
        for update in range(2, 12):
            bars.update_ended(update, m, episodes if update == 2 else [Trajectory("t", 0, reward=9.0)])
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note")]
    said = f"note: update 7: no episode reached --success-threshold 1; the best earned {earned}. "
    assert [note.startswith(said) for note in notes] == [True] * bool(earned)
