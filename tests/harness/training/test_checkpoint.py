import os

import pytest
import torch
from child import python
from transformers import AutoModelForCausalLM, Qwen2Config, Qwen2ForCausalLM, Qwen3MoeConfig

from eh_gym.errors import StateError
from harness.model.lora import add_lora
from harness.records.run_folder import latest_checkpoint
from harness.settings.optimizer import Optimizer
from harness.training.checkpoint import (
    keep_frozen,
    load_frozen,
    load_training_state,
    save_checkpoint,
    write_training_state,
)
from harness.update.optimizer import make_optimizer, parameters_of


def tiny(seed=0, hidden_size=8, layers=1):
    torch.manual_seed(seed)
    sizes = {"vocab_size": 11, "intermediate_size": 8, "num_attention_heads": 2, "num_key_value_heads": 2}
    sizes |= {"hidden_size": hidden_size, "num_hidden_layers": layers}
    model = Qwen2ForCausalLM(Qwen2Config(**sizes, tie_word_embeddings=True))
    return model, optimizer_of(model)


def optimizer_of(model):
    return make_optimizer(model, Optimizer(learning_rate=0.01))


def train(model, optimizer, steps):
    for step in range(steps):
        ids = torch.randint(11, (2, 4), generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()


class TestSaveCheckpoint:
    def test_is_named_after_its_update_and_the_newest_is_found(self, tmp_path):
        folder = tmp_path / "new" / "checkpoints"
        for update in (0, 9, 10, 999_999, 1_000_000):
            saved = save_checkpoint(folder, update, write=lambda part: None, keep=9)
            assert latest_checkpoint(folder) == saved
        names = sorted(path.name for path in folder.iterdir())
        assert names == ["update-000000", "update-000009", "update-000010", "update-1000000", "update-999999"]

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


_KILLED_SAVES = """
import contextlib, os, shutil, signal, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from harness.training.checkpoint import load_training_state, save_checkpoint, write_training_state
from harness.settings.optimizer import Optimizer
from harness.update.optimizer import make_optimizer
from harness.records.run_folder import latest_checkpoint
root = Path(sys.argv[1])
model, other = (torch.nn.Linear(2, 2) for _ in range(2))
settings = Optimizer(learning_rate=1.0)
optimizer, others = (make_optimizer(m, settings) for m in (model, other))

def save(folder, update, keep):
    def write(part):
        write_training_state(part, {"update": update}, model=model, optimizer=optimizer)
    with torch.no_grad():
        model.weight.fill_(update)
    save_checkpoint(folder, update, write=write, keep=keep)

def check(path):
    extra = load_training_state(path, model=other, optimizer=others)
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
    assert int(python("-c", _KILLED_SAVES, tmp_path)) > 30  # so many places were tried


def test_another_models_checkpoint_and_a_damaged_file_are_refused_in_one_line(tmp_path, caplog):
    model, optimizer = tiny()
    write_training_state(tmp_path, {}, model=model, optimizer=optimizer)
    for other in (tiny(hidden_size=16), tiny(layers=2)):
        with pytest.raises(StateError, match=r"^tensors .*restore"):
            load_training_state(tmp_path, model=other[0], optimizer=other[1])
    for name, told in (("state.json", ".json"), ("tensors/.metadata", "/.metadata"), ("tensors/__0_0.distcp", "")):
        file = tmp_path / name
        whole = file.read_bytes()
        for damaged in (whole[: len(whole) // 2], whole[::-1], b"", None):
            file.unlink() if damaged is None else file.write_bytes(damaged)
            line = rf"^{name.split('.')[0].split('/')[0]}{told} of [^\n]*; if a file is damaged, delete [^\n]*$"
            with pytest.raises(StateError, match=line) as error:
                load_training_state(tmp_path, model=model, optimizer=optimizer)
            assert "Traceback" not in str(error.value)
            file.write_bytes(whole)
    assert "metadata is not found" not in caplog.text  # torch says it with two tracebacks
    load_training_state(tmp_path, model=model, optimizer=optimizer)


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "adapters"])
def test_a_resumed_training_takes_the_same_steps(tmp_path, kind):
    shape = {"hidden_size": 8, "moe_intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = Qwen3MoeConfig(vocab_size=11, num_key_value_heads=2, num_experts=4, num_experts_per_tok=2, **shape)

    def new(seed):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16 if kind == "bfloat16" else torch.float32)
        if kind == "adapters":
            add_lora(model, 2, seed=seed)
        return model, optimizer_of(model)

    model, optimizer = new(0)
    train(model, optimizer, 2)
    if kind == "adapters":
        keep_frozen(tmp_path / "frozen.safetensors", model)
    write_training_state(tmp_path, {"next_update": 3}, model=model, optimizer=optimizer)
    train(model, optimizer, 3)
    resumed, its_optimizer = new(1)
    if kind == "adapters":
        load_frozen(tmp_path / "frozen.safetensors", resumed)
    assert load_training_state(tmp_path, model=resumed, optimizer=its_optimizer) == {"next_update": 3}
    train(resumed, its_optimizer, 3)
    assert all(map(torch.equal, resumed.state_dict().values(), model.state_dict().values()))
    assert all(map(torch.equal, parameters_of(its_optimizer), parameters_of(optimizer)))
