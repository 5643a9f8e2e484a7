"""What a command line of harness.grpo asks for."""

import re

import pytest

from harness.records.run_folder import prepare
from harness.settings.grpo import GRPOConfig, from_recipe
from harness.settings.section import changed
from harness.training.command import RunRequest, read_command


def test_a_resumed_run_takes_its_length_and_what_is_of_the_machine(quick: GRPOConfig) -> None:
    prepare(quick)
    words, used = ["--resume", str(quick.out), "--slots", "3", "--group-size"], changed(quick, slots=3)
    assert read_command([*words, "4"]) == RunRequest(used, quick.out, notes=[])
    note = "note: the run goes on with its own settings; ignored: --group-size, --k0"
    assert read_command([*words, "5", "--k0", "7", "--updates", "9"]) == RunRequest(used, quick.out, 9, [note])


@pytest.mark.parametrize(
    ("words", "note"),
    [
        (["--model", "tiny"], r"recipe: quickstart \(.*quickstart.toml\); --recipe chooses another"),
        (["--recipe", "paper"], "recipe: paper, the defaults of --help-all"),
    ],
)
def test_a_new_run_has_its_recipe_s_settings(words: list[str], note: str) -> None:
    asked = read_command([*words, "--updates", "9"])
    name = "paper" if "paper" in words else "quickstart"
    assert asked == RunRequest(changed(from_recipe(name), updates=9), notes=asked.notes)
    assert re.fullmatch(note, *asked.notes)
