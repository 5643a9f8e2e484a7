import re
import runpy
from importlib import import_module
from pathlib import Path

import pytest
from rich.console import Console

from eh_gym.errors import ConfigError
from eh_gym.horizon.make import HORIZONS
from harness.settings.command_line import errors_in_one_line, parse
from harness.settings.evaluate import EvaluateConfig
from harness.settings.grpo import GRPOConfig
from harness.settings.sampling import SAMPLERS
from harness.settings.section import FIRST, flat, leaves, settings_in
from harness.training.command import read_command

REFERENCE = runpy.run_path(str(Path(__file__).parents[3] / "tools" / "reference.py"))
COMMANDS = REFERENCE["COMMANDS"]


def test_a_value_that_is_missing_or_wrong_ends_the_command(capsys):
    for command, words, flag in (("export", ["bfcl", "x"], "--out"), ("evaluate", ["--seed", "many"], "--seed")):
        with pytest.raises(SystemExit, match="2"):
            parse(COMMANDS[f"harness.{command}"]([]), words, prog="")
        assert flag in capsys.readouterr().err


def settings_of(*words):
    return flat(read_command(words).config)


def test_a_flag_has_dashes_or_underscores_and_its_value_follows_or_stands_behind_an_equals_sign():
    for words in (
        ["--k-max", "40"],
        ["--k_max", "40"],
        ["--k-max=40"],
        ["--k_max=40"],
        ["--k-max", "9", "--k-max", "40"],
    ):
        assert settings_of(*words)["k_max"] == 40
    for words in (["--warm-start.max-batches", "7"], ["--warm_start.max_batches=7"]):
        assert settings_of(*words)["warm_start.max_batches"] == 7
    assert settings_of("--no-packing")["packing"] is settings_of("--no_packing")["packing"] is False
    assert settings_of("--wrapper=fixed", "--k0=20")["wrapper"] == "fixed"
    with pytest.raises(ConfigError, match="no flag --no_packin; did you mean --packing"):
        settings_of("--no_packin")
    assert settings_of('--env-args={"tasks": 4}', "--success-threshold=-3")["env_args"] == {"tasks": 4}
    agent = ["--recipe", "smollm2", "--tasks=t.jsonl"]
    assert settings_of(*agent, "--agent", "node a.js --quick=1 --k00")["agent"] == "node a.js --quick=1 --k00"
    # Behind =, as a value that begins with a dash must be.
    assert settings_of(*agent, "--agent=--k00 x")["agent"] == "--k00 x"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--k00 5", "no flag --k00; did you mean --k0?"),
        ("--warm-start.episode 3", "did you mean --warm-start.episodes?"),
        ("--lr 0.1", "no flag --lr; did you mean --learning-rate?"),
        ("--horizon 20", "did you mean --k0?"),
        ("--K 20 --wrapper linear", "no flag --K; did you mean --k-min?"),
        ("--steps 9", "did you mean --updates?"),
        ("evaluate --K=20", "no flag --K; did you mean --horizon?"),
        ("evaluate --seed -1", "seed must be a whole number >= 0, got -1; change --seed"),
        ("--updates 3 4", "4 belongs to no flag"),
        ("--xyzzy 3", "no flag --xyzzy; --help-all shows all flags"),
        ("--adam-beta2 0.9", "adam_beta2 has no flag; give it in a recipe or in a Python program"),
        ("--wrapper elastc", "'elastc'; did you mean elastic?"),
        ("--sampler vlm", "transformers, vllm, vllm-server, or MODULE:CLASS, got 'vlm'; did you mean vllm?"),
        ("--alpha 0.3 --wrapper fixed", "--alpha is for --wrapper elastic or task, got --wrapper fixed; leave it out"),
        ("--url http://a:1", "--url is for --sampler vllm-server, got --sampler transformers; leave it out"),
    ],
)
def test_a_flag_that_there_is_not_or_that_another_choice_has_is_named(words, said):
    command, *given = words.split()
    with pytest.raises(ConfigError) as error:
        parse(EvaluateConfig(), given, prog="") if command == "evaluate" else read_command([command, *given])
    assert said in str(error.value)


def test_an_error_is_one_line_as_it_is(capsys):
    with pytest.raises(SystemExit, match="2"), errors_in_one_line(Console()):
        raise ConfigError("run pip install -e '.[train]', see [/x]")
    assert capsys.readouterr().out == "error: run pip install -e '.[train]', see [/x]\n"
    with pytest.raises(SystemExit, match="130"), errors_in_one_line(Console()):
        raise KeyboardInterrupt("go on with --out [x]")
    assert capsys.readouterr().out == "stopped; go on with --out [x]\n"
    with pytest.raises(ZeroDivisionError), errors_in_one_line(Console()):  # our own mistakes keep their traceback
        print(1 // 0)


@pytest.mark.parametrize("rank", ["0", "1"])
def test_under_torchrun_only_a_machine_s_first_rank_tells_an_error(rank, monkeypatch, capsys):
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "x")
    monkeypatch.setenv("LOCAL_RANK", rank)
    told = []
    monkeypatch.setattr("harness.settings.command_line.time.sleep", lambda s: told.append(capsys.readouterr().out))
    with pytest.raises(SystemExit), errors_in_one_line(Console()):
        raise ConfigError("no wandb")
    assert told == [""] * int(rank)
    assert capsys.readouterr().out == "error: no wandb\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_of_80_columns(command, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit, match="0"):
        parse(COMMANDS[command]([]), ["--help"], prog=f"python -m {command}")
    said = capsys.readouterr().out
    assert f"python -m {command}" in said
    assert max(map(len, said.splitlines())) == 80


def page(capsys, *words, command="grpo"):
    with pytest.raises(SystemExit, match="0"):
        import_module(f"harness.{command}").main(list(words))
    return capsys.readouterr().out


def flags_on(page):
    return {*re.findall(r"^\W*(--(?!help-all)(?:no-)?[a-z0-9][\w.-]+)", page, re.MULTILINE)}


@pytest.mark.parametrize("command", ["grpo", "evaluate"])
def test_help_is_short_and_help_all_shows_every_flag(command, capsys):
    flags = REFERENCE["flags"](COMMANDS[f"harness.{command}"]([]))
    everything = {name.split("`")[1] for name in flags if name.startswith("`--")}
    whole = page(capsys, "--help-all", command=command)
    assert everything <= flags_on(whole)
    assert len(page(capsys, "--help", command=command)) < 0.6 * len(whole)


def first_of(settings):
    return [one.name for one in leaves(settings) if one.choice or FIRST in one.marks]


def test_the_first_page_has_marked_flags_and_at_most_five_of_a_controller(capsys):
    marked = [*first_of(GRPOConfig()), "resume", "recipe"]
    for wrapper, kind in HORIZONS.items():
        for sampler in SAMPLERS:
            shown = flags_on(page(capsys, "--help", "--wrapper", wrapper, "--sampler", sampler))
            own = [*[field.name for field in settings_in(kind)][:5], *first_of(SAMPLERS[sampler]())]
            assert shown == {f"--{name.replace('_', '-')}" for name in [*marked, *own]}
