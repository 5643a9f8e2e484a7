import json
import math
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.plugins.custom_scalar.layout_pb2 import Layout

from eh_gym.errors import StateError
from harness.records.files import DiskFull
from harness.records.glossary import GLOSSARY, LOOK_AT, glossary_markdown
from harness.records.metrics import MetricsLog, mean_reward, read_metrics


def write(run_dir, values, first=0):
    log = MetricsLog(run_dir, first)
    for update, value in enumerate(values, start=first):
        log.write(update, {"train/loss": value})
    log.close()


def losses(run_dir):
    return [(row["update"], row["train/loss"]) for row in read_metrics(run_dir / "metrics.jsonl")]


def board(run_dir, name="train/loss"):
    events = EventAccumulator(str(run_dir)).Reload()
    return [(e.step, e.value) for e in events.Scalars(name)] if name in events.Tags()["scalars"] else []


def test_one_json_object_an_update(tmp_path):
    log = MetricsLog(tmp_path)
    log.write(0, {"train/loss": 0.5, "horizon/k": 10})
    log.write(1, {"train/loss": np.float32(0.25), "horizon/k_of/a/b": True})
    log.close()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert lines == [
        '{"update": 0, "train/loss": 0.5, "horizon/k": 10.0}',
        '{"update": 1, "train/loss": 0.25, "horizon/k_of/a/b": 1.0}',
    ]
    assert board(tmp_path) == [(0, 0.5), (1, 0.25)]
    assert board(tmp_path, "horizon/k") == [(0, 10.0)]


def test_tensorboard_has_the_metrics_to_look_at_first_on_a_tab_of_their_own(tmp_path):
    write(tmp_path, [1.0])
    events = EventAccumulator(str(tmp_path)).Reload()
    (layout,) = events.Tensors("custom_scalars__config__")
    (category,) = Layout.FromString(layout.tensor_proto.string_val[0]).category
    shown = [name for name in GLOSSARY for chart in category.chart if re.match(chart.multiline.tag[0], name)]
    assert sorted(shown) == sorted(LOOK_AT)


def test_a_value_that_is_not_finite_is_null_and_no_point(tmp_path):
    write(tmp_path, [math.nan, math.inf, -math.inf, 1.0])
    assert losses(tmp_path) == [(0, None), (1, None), (2, None), (3, 1.0)]
    assert "NaN" not in (tmp_path / "metrics.jsonl").read_text()  # which is no JSON
    assert board(tmp_path) == [(3, 1.0)]


def test_a_killed_process_leaves_every_update_it_wrote_in_both_places(tmp_path):
    code = (
        "import os, signal, sys; from pathlib import Path; from harness.records.metrics import MetricsLog\n"
        "log = MetricsLog(Path(sys.argv[1]))\n"
        "log.write(0, {'train/loss': 3.0}); log.write(1, {'train/loss': 2.0})\n"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    child = subprocess.run([sys.executable, "-c", code, str(tmp_path)], timeout=120, check=False)
    assert child.returncode == -signal.SIGKILL
    assert losses(tmp_path) == board(tmp_path) == [(0, 3.0), (1, 2.0)]


def test_resuming_cuts_the_updates_after_the_checkpoint_in_both_places(tmp_path):
    write(tmp_path, [0.0, 1.0, 2.0, 3.0, 4.0])
    write(tmp_path, [30.0, 40.0], first=3)
    assert losses(tmp_path) == board(tmp_path) == [(0, 0.0), (1, 1.0), (2, 2.0), (3, 30.0), (4, 40.0)]


def test_a_full_disk_leaves_the_old_log_whole(tmp_path, monkeypatch):
    write(tmp_path, [0.0, 1.0, 2.0])

    def no_space(*_):
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "replace", no_space)
    with pytest.raises(DiskFull, match=r"metrics\.jsonl"):
        MetricsLog(tmp_path, 1)
    assert losses(tmp_path) == [(0, 0.0), (1, 1.0), (2, 2.0)]


@pytest.mark.parametrize(
    ("rewards", "said"), [({}, ""), ({"reward_mean": 0.5}, ""), ({"reward_mean": 0.61234}, "0.6123")]
)
def test_a_mean_reward_is_said_where_it_is_not_the_success(rewards, said):
    assert mean_reward({"mean_at_k": 0.5, **rewards}).get("mean reward", "") == said


def test_the_glossary_has_a_row_of_three_columns_for_each_metric():
    bars = [len(re.findall(r"(?<!\\)\|", row)) for row in glossary_markdown().splitlines()]
    assert bars == [4] * (2 + len(GLOSSARY))


def test_every_prefix_of_a_log_reads_as_its_whole_lines(tmp_path):
    path = tmp_path / "metrics.jsonl"
    rows = [{"update": i, "train/loss": i / 3} for i in range(4)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    for length in range(len(text) + 1):
        path.write_text(text[:length])
        assert read_metrics(path) == rows[: text[:length].count("\n")]


@pytest.mark.parametrize(
    "line",
    [
        *("{", "", "[1]", "7", "null", '{"train/loss": 1}', '{"update": "x"}', "\x00\x00", "é"),
        *('{"update": 1e400}', '{"update": 0}'),  # of another update
    ],
)
def test_a_damaged_line_is_named(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"update": 0}\n' + line + '\n{"update": 2}\n')
    with pytest.raises(StateError, match=r"line 2 of .*metrics.jsonl.*checkpoints after update-000001"):
        read_metrics(path)
