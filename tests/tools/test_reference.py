import dataclasses
import re
import runpy
from pathlib import Path

import pytest

pytest.importorskip("torch")

from eh_gym.horizon.make import HORIZONS
from harness.settings.sampling import SAMPLERS

REFERENCE = runpy.run_path(str(Path(__file__).parents[2] / "tools" / "reference.py"))


def test_each_flag_of_each_horizon_and_sampler_is_there_once():
    page = REFERENCE["flags_markdown"]()
    training = page[: page.index("## harness.evaluate")]
    rows = [tuple(row.strip("| ").split(" | ")) for row in training.splitlines() if row.startswith("| `")]
    # A flag comes again where it means another thing, or has another default.
    assert len(rows) == len({(row[0], row[1].split(" with ")[0], row[2]) for row in rows})
    first, others = rows[: len(REFERENCE["flags"](REFERENCE["COMMANDS"]["harness.grpo"]([])))], dict[str, set[str]]()
    for flag, default, *_ in rows[len(first) :]:
        others.setdefault(re.split(r"[` ]+", flag)[1], set()).add(default.rpartition(" with ")[2])
    assert {with_ for names in others.values() for with_ in names} <= {*HORIZONS, *SAMPLERS}
    shown = {re.split(r"[` ]+", row[0])[1] for row in first} | {*others}
    for kind in (*HORIZONS.values(), *SAMPLERS.values()):
        assert {f"--{field.name.replace('_', '-')}" for field in dataclasses.fields(kind)} <= shown
    assert others["--k0"] >= {"fixed", "task"}
    assert (others["--url"], others["--gpu-memory-utilization"]) == ({"vllm-server"}, {"vllm"})


def test_the_quick_start_s_defaults_are_beside_the_paper_s_and_a_command_has_at_most_80_flags():
    page = REFERENCE["flags_markdown"]()
    assert "| `--updates` INT | `200`, quick start `60` |" in page
    assert "| `--k0` INT | `15`, quick start `10` |" in page
    assert len(REFERENCE["flags"](REFERENCE["COMMANDS"]["harness.grpo"]([]))) <= 80
