"""Weights & Biases, the real package, without a network; `tox run -e integration-trackers` has them."""

import json
import time

import pytest

from harness.records.metrics import MetricsLog


def _log(folder, first, values):
    log = MetricsLog(folder, first, ["tensorboard", "wandb"], {"seed": 7})
    for update, value in enumerate(values, start=first):
        log.write(update, {"train/loss": value, "horizon/k": 10})
    log.close()


def _wandb_records(path):
    """The records of a ``.wandb`` file: after 7 bytes, each has a checksum (4 bytes), a length (2) and a type (1 is
    whole)."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at = path.read_bytes(), 7
    while at < len(data):
        length, kind = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        assert kind == 1
        record = Record()
        record.ParseFromString(data[at + 7 : at + 7 + length])
        yield record
        at += 7 + length


def test_wandb_offline(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    _log(tmp_path, 0, [3.0, 2.0])
    time.sleep(1.1)  # wandb names the folder of an offline session by the second in which it began
    _log(tmp_path, 2, [1.0])
    wandb.teardown()  # its own process may write the last records after the runs' ends
    files = sorted(tmp_path.glob("wandb/offline-run-*/*.wandb"), key=lambda path: path.stat().st_mtime_ns)
    found, ids = [], set()
    for file in files:
        for record in _wandb_records(file):
            if record.HasField("run"):
                ids.add(record.run.run_id)
                config = {item.key: item.value_json for item in record.run.config.update}
                assert config["seed"] == "7"
            if record.HasField("history"):
                row = {
                    item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item
                }
                found.append((row["_step"], row["train/loss"], row["horizon/k"]))
    assert found == [(0, 3.0, 10), (1, 2.0, 10), (2, 1.0, 10)]
    assert ids == {(tmp_path / "tracker-id").read_text()}
