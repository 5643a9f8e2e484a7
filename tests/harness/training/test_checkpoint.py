"""A checkpoint is there whole or not at all, whenever the process is killed, and goes on exactly where it was saved."""

import copy
import os
import shutil
import subprocess
import sys
import threading
import time

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3MoeConfig

from eh_gym.errors import StateError
from harness.policy.ranks import Ranks
from harness.run.run_folder import latest_checkpoint
from harness.training import checkpoint
from harness.training.checkpoint import (
    CheckpointWriter,
    load_training_state,
    save_checkpoint,
    training_state,
    write_training_state,
)
from harness.training.optimizer import make_optimizer


def tiny(seed=0, hidden_size=8):
    torch.manual_seed(seed)
    model = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=11,
            hidden_size=hidden_size,
            intermediate_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=2,
            tie_word_embeddings=True,
        )
    )
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def train(model, optimizer, steps):
    """Steps on batches drawn from torch's global generator."""
    for _ in range(steps):
        ids = torch.randint(11, (2, 4))
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()


def same_weights(model, other):
    found, expected = model.state_dict(), other.state_dict()
    return found.keys() == expected.keys() and all(torch.equal(found[name], expected[name]) for name in found)


def test_a_run_goes_on_where_there_are_fewer_gpus(tmp_path, monkeypatch):
    model, optimizer = tiny()
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.get_rng_state_all", lambda: [torch.get_rng_state()] * 2)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    write_training_state(tmp_path, training_state(model=model, optimizer=optimizer), model=model, extra={})
    given = []
    monkeypatch.setattr("torch.cuda.set_rng_state_all", given.extend)
    load_training_state(tmp_path, model=model, optimizer=optimizer)
    assert len(given) == 1


def note(text):
    """Writes a checkpoint of one file."""
    return lambda folder: (folder / "note").write_text(text) and None


def names(folder):
    return sorted(path.name for path in folder.iterdir())


class TestSaveCheckpoint:
    def test_is_named_after_its_update_and_the_newest_is_found(self, tmp_path):
        folder = tmp_path / "new" / "checkpoints"
        for update in (0, 9, 10, 999_999, 1_000_000):
            saved = save_checkpoint(folder, update, write=note(str(update)), keep=9)
            assert latest_checkpoint(folder) == saved
            assert (saved / "note").read_text() == str(update)
        assert names(folder) == ["update-000000", "update-000009", "update-000010", "update-1000000", "update-999999"]

    def test_every_file_is_on_disk_before_the_checkpoint_gets_its_name(self, tmp_path, monkeypatch):
        # Without it a power cut may keep the name and lose the contents.
        synced, fsync, rename = set(), os.fsync, os.rename

        def watched_fsync(handle):
            fsync(handle)
            synced.add(os.fstat(handle).st_ino)

        def watched_rename(source, target):
            needed.update({path.stat().st_ino: path.name for path in [source, *source.rglob("*")]})
            assert needed.keys() <= synced
            rename(source, target)

        def write(folder):
            (folder / "a").write_text("x")
            (folder / "deep").mkdir()
            (folder / "deep" / "b").write_text("x")

        needed = {}
        monkeypatch.setattr(os, "fsync", watched_fsync)
        monkeypatch.setattr(os, "rename", watched_rename)
        save_checkpoint(tmp_path, 1, write=write, keep=1)
        assert set(needed.values()) >= {"a", "deep", "b"}
        assert tmp_path.stat().st_ino in synced  # the name itself

    def test_the_one_in_whose_place_it_comes_is_deleted_after_it_has_its_name(self, tmp_path, monkeypatch):
        """A kill while gigabytes were deleted left a run without its newest checkpoint, or without any."""

        def killed(folder):
            raise KeyboardInterrupt

        save_checkpoint(tmp_path, 3, write=note("before"), keep=1)
        monkeypatch.setattr(shutil, "rmtree", killed)
        with pytest.raises(KeyboardInterrupt):
            save_checkpoint(tmp_path, 3, write=note("after"), keep=1)
        assert (latest_checkpoint(tmp_path) / "note").read_text() == "after"


class TestLatestCheckpoint:
    def test_other_names_are_ignored(self, tmp_path):
        for name in ("update-000002", ".part-000009", ".part-update-000009", "update-000009.old", "update-9", "notes"):
            (tmp_path / name).mkdir()
        assert latest_checkpoint(tmp_path) == tmp_path / "update-000002"


_KILLED_SAVES = """
import contextlib, os, shutil, signal, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from harness.policy.ranks import Ranks
from harness.training.checkpoint import CheckpointWriter, load_training_state, training_state, write_training_state
from harness.run.run_folder import latest_checkpoint
from transformers.utils.logging import disable_progress_bar
disable_progress_bar()
root = Path(sys.argv[1])
model, other = (torch.nn.Linear(2, 2) for _ in range(2))
model.save_pretrained = lambda folder, state_dict, **_: save_file(state_dict, str(folder / "model.safetensors"))
from safetensors.torch import save_file
optimizer = torch.optim.AdamW(model.parameters())

def save(folder, update, keep):
    def write(part, state, ranks):
        write_training_state(part, state, model=model, extra={"update": update})
    writer = CheckpointWriter(folder, keep=keep, ranks=Ranks())
    with torch.no_grad():
        model.weight.fill_(update)
        writer.save(update, training_state(model=model, optimizer=optimizer), write)
        model.weight.fill_(-1)  # the training goes on while the thread writes
    writer.wait()

def check(path):
    extra = load_training_state(path, model=other, optimizer=torch.optim.AdamW(other.parameters()))
    update = int(path.name[7:])
    assert extra == {"update": update}, (path, extra)
    assert (other.weight == update).all(), path

base = root / "base"
save(base, 1, keep=2)
save(base, 2, keep=2)
WATCHED = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "os.listdir", "os.scandir", "shutil.rmtree"}
kills = 0
while True:  # killed before its first touch of the disk, before its second, ...: until it gets through
    folder = root / f"try-{kills}"
    shutil.copytree(base, folder)
    child = os.fork()
    if child == 0:
        seen = 0
        def hook(event, args):
            global seen
            if event in WATCHED:
                if seen == kills:
                    os.kill(os.getpid(), signal.SIGKILL)
                seen += 1
        sys.addaudithook(hook)
        try:
            save(folder, 3, keep=2)  # takes update 1 away
            save(folder, 3, keep=2)  # takes the place of the first
        except BaseException:
            os._exit(1)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL), status
    assert latest_checkpoint(folder) is not None
    for path in folder.glob("update-*"):  # not the newest alone: the error message sends users to the one before
        check(path)
    save(folder, 4, keep=2)
    left = sorted(path.name for path in folder.iterdir())
    assert len(left) == 2 and left[1] == "update-000004" and left[0] in ("update-000002", "update-000003"), left
    shutil.rmtree(folder)
    if status == 0:
        break
    kills += 1
print(kills)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks one process for each place to be killed at")
def test_killed_at_any_moment_of_a_save_every_named_checkpoint_loads(tmp_path):
    child = subprocess.run(
        [sys.executable, "-c", _KILLED_SAVES, str(tmp_path)], capture_output=True, text=True, timeout=600, check=False
    )
    assert child.returncode == 0, child.stderr
    assert int(child.stdout) > 30  # so many places were tried


def until_it_raises(writer):
    for _ in range(6000):
        writer.check()
        time.sleep(0.01)


class TestCheckpointWriter:
    """What a thread writes is the state of the moment when it was told to."""

    def writer(self, folder):
        return CheckpointWriter(folder, keep=2, ranks=Ranks())

    def test_the_training_that_goes_on_changes_nothing_of_what_is_written(self, tmp_path):
        model, optimizer = tiny()
        train(model, optimizer, 2)
        saved = copy.deepcopy(model)
        begin, writer = threading.Event(), self.writer(tmp_path)

        def write(folder, state, ranks):
            assert begin.wait(60)
            write_training_state(folder, state, model=model, extra={"next_update": 3})

        writer.save(3, training_state(model=model, optimizer=optimizer), write)
        train(model, optimizer, 3)
        assert latest_checkpoint(tmp_path) is None  # it has its name when it is whole
        begin.set()
        writer.wait()
        resumed, resumed_optimizer = tiny(seed=1)
        path = latest_checkpoint(tmp_path)
        load_training_state(path, model=resumed, optimizer=resumed_optimizer)
        assert same_weights(resumed, saved)
        train(resumed, resumed_optimizer, 3)  # moments and random state too are those of that moment
        assert same_weights(resumed, model)

    def test_the_thread_uses_the_gpu_of_its_rank(self, tmp_path, monkeypatch):
        """Each rank's thread made a context on the first GPU, of half a gigabyte."""
        stager, used = checkpoint.DefaultStager, {}
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
        monkeypatch.setattr(torch.cuda, "set_device", lambda gpu: used.update({threading.current_thread().name: gpu}))
        plain = checkpoint.StagingOptions(False, False, False, False)
        monkeypatch.setattr(checkpoint, "DefaultStager", lambda options: stager(plain))
        writer = self.writer(tmp_path)
        writer.save(1, {}, lambda folder, state, ranks: (folder / "note").write_text("x") and None)
        writer.wait()
        writer.close()
        assert used == {"eh-checkpoint_0": 3}

    def test_one_is_written_at_a_time(self, tmp_path):
        writer, at_once, most = self.writer(tmp_path), [], []

        def write(folder, state, ranks):
            at_once.append(folder)
            time.sleep(0.05)
            most.append(len(at_once))
            at_once.remove(folder)

        for update in (1, 2, 3):
            writer.save(update, {}, write)
        assert latest_checkpoint(tmp_path) == tmp_path / "update-000002"  # the second was waited for
        writer.close()
        assert most == [1, 1, 1]
        assert names(tmp_path) == ["update-000002", "update-000003"]

    @pytest.mark.parametrize("surfaces", ["save", "check", "wait"])
    def test_an_error_of_the_thread_surfaces_once(self, tmp_path, surfaces):
        def fail(folder, state, ranks):
            raise OSError("input or output error")

        writer = self.writer(tmp_path)
        writer.save(1, {}, fail)
        calls = {
            "save": lambda: writer.save(2, {}, note),
            "check": lambda: until_it_raises(writer),
            "wait": writer.wait,
        }
        with pytest.raises(OSError, match="input or output"):
            calls[surfaces]()
        writer.save(2, {}, lambda folder, state, ranks: (folder / "note").write_text("x") and None)
        writer.close()
        assert latest_checkpoint(tmp_path) == tmp_path / "update-000002"


class TestTrainingState:
    def save(self, folder, **extra):
        model, optimizer = tiny()
        train(model, optimizer, 2)
        folder.mkdir()
        write_training_state(folder, training_state(model=model, optimizer=optimizer), model=model, extra=extra)
        return model, optimizer

    def test_a_mixture_of_experts_resumes(self, tmp_path):
        """It was saved with the hub's names: one matrix per expert, where the model has one tensor for all."""
        shape = {"hidden_size": 8, "moe_intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
        config = Qwen3MoeConfig(vocab_size=11, num_key_value_heads=2, num_experts=4, num_experts_per_tok=2, **shape)
        model, resumed = AutoModelForCausalLM.from_config(config), AutoModelForCausalLM.from_config(config)
        optimizers = [torch.optim.AdamW(m.parameters()) for m in (model, resumed)]
        write_training_state(tmp_path, training_state(model=model, optimizer=optimizers[0]), model=model, extra={})
        load_training_state(tmp_path, model=resumed, optimizer=optimizers[1])
        assert same_weights(resumed, model)
        assert same_weights(AutoModelForCausalLM.from_pretrained(tmp_path), model)

    def test_another_models_checkpoint_is_refused(self, tmp_path):
        self.save(tmp_path / "c")
        model, optimizer = tiny(hidden_size=16)
        with pytest.raises(StateError, match=r"^model\.safetensors .*size mismatch"):
            load_training_state(tmp_path / "c", model=model, optimizer=optimizer)

    def test_a_checkpoint_in_another_type_is_refused(self, tmp_path):
        self.save(tmp_path / "c")
        model = tiny()[0].bfloat16()
        optimizer = make_optimizer(model, learning_rate=0.01, weight_decay=0.0, betas=(0.9, 0.99))
        with pytest.raises(StateError, match=r"^training\.pt .*restore"):
            load_training_state(tmp_path / "c", model=model, optimizer=optimizer)

    def test_a_pickle_that_would_run_code_is_refused(self, tmp_path):
        class Evil:
            def __reduce__(self):
                return (os.mkdir, (str(tmp_path / "ran"),))

        self.save(tmp_path / "c")
        torch.save({"optimizer": Evil(), "rng": None, "rng_cuda": []}, tmp_path / "c" / "training.pt")
        model, optimizer = tiny()
        with pytest.raises(StateError, match=r"^training\.pt"):
            load_training_state(tmp_path / "c", model=model, optimizer=optimizer)
        assert not (tmp_path / "ran").exists()
