from contextlib import contextmanager

import pytest
from quiet_run import metrics_of
from safetensors.torch import load_file
from torch.distributed.checkpoint import FileSystemReader

from eh_gym.errors import StateError, UserCodeError, WorkerError
from envs.cabinet.env import CabinetEnv
from harness import train
from harness.evaluation.held_out import HeldOutEvaluator
from harness.rollout.batches import Batches
from harness.sampling.weights import SampledWeights
from harness.settings.section import changed
from harness.training import loop
from harness.training.training_run import TrainingRun
from harness.update.learner import Learner


class Talks(CabinetEnv):
    """Has other rewards for other words, so that an untrained model learns."""

    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, len(action) % 3, *rest


WATCHED = {
    loop: "tell_controller",
    Batches: "take prepare",
    SampledWeights: "before_training hand_over save",
    Learner: "update",
    HeldOutEvaluator: "sampled_and_greedy during_training",
    TrainingRun: "write save",
}


@pytest.fixture
def done(monkeypatch):
    done = []

    def watch(owner, name):
        method = getattr(owner, name)

        def call(*args):
            done.append(" ".join([name, *(str(one) for one in args if type(one) is int)]))
            return method(*args)

        monkeypatch.setattr(owner, name, call)

    for owner, names in WATCHED.items():
        for name in names.split():
            watch(owner, name)
    paused = Batches.paused

    @contextmanager
    def watched(self):
        with paused(self):
            done.append("(")
            yield
            done.append(")")

    monkeypatch.setattr(Batches, "paused", watched)
    return done


@pytest.mark.parametrize(("rank", "kept"), [(0, "reference"), (2, "frozen.safetensors")])
def test_a_run_takes_its_steps_in_this_order_and_goes_on_where_it_was_stopped(rank, kept, quick, done, capsys):
    few = {"tasks_per_update": 2, "group_size": 2, "slots": 3, "eval_tasks": 2, "eval_rollouts": 1}
    few |= {"k0": 5, "eval_horizon": 5, "eval_every": 3, "checkpoint_every": 2, "warm_start.episodes": 0}
    config = changed(quick, lora_rank=rank, kl_coef=0.1, rollout="streaming", truncated_reward="keep", **few)
    same = changed(config, out=config.out.with_name("whole"))
    first, last = ["sampled_and_greedy", "save 0"], ["save", "sampled_and_greedy"]
    each = []
    for update in range(4):
        each.append([f"take {update}", "(", "tell_controller", ")", "before_training", f"prepare {update + 1}"])
        each[-1] += [f"update {update}", "(", "hand_over", ")"]
        each[-1] += [*["during_training 2"] * (update == 2), f"write {update}"]
    whole = train(same, env=Talks)
    assert done == [*first, *each[0], *each[1], "save 2", *each[2], *each[3], "save 4", *last]
    assert "note: " not in capsys.readouterr().out

    done.clear()
    stopped = train(config, env=Talks, on_update=lambda update, _: update == 2)
    assert done == [*first, *each[0], *each[1], "save 2", *each[2], "save 3", *last]

    done.clear()
    resumed = train(resume=stopped.folder, env=Talks)
    assert done == [*each[3], "save 4", *last]
    assert "resumed at update 3 from" in " ".join(capsys.readouterr().out.split())
    assert metrics_of(config) == metrics_of(same)
    assert resumed.evaluations == whole.evaluations
    assert ["time/evaluation_s" in row for row in resumed.history] == [False, False, True, False]
    assert resumed.history[-1]["train/kl_ref"] > 0
    for file in ("model/model.safetensors", "evaluation.json"):
        assert (resumed.folder / file).read_bytes() == (whole.folder / file).read_bytes()
    if rank:  # the adapters are in the checkpoints, and the frozen weights beside them, once
        tensors = FileSystemReader(next(resumed.folder.glob("checkpoints/*/tensors"))).read_metadata()
        assert all(".lora_A." in name or ".lora_B." in name for name in tensors.state_dict_metadata)
        assert not any("lora" in name for name in load_file(resumed.folder / kept))
        (resumed.folder / kept).write_bytes(b"half")
        with pytest.raises(StateError, match=rf"{kept}.*restore"):
            train(resume=resumed.folder, env=Talks, show=False)
    (resumed.folder / kept).rename(resumed.folder / "gone")
    with pytest.raises(StateError, match=kept):
        train(resume=resumed.folder, env=Talks, show=False)


@pytest.mark.parametrize("error", [ValueError, WorkerError])
def test_an_environment_that_fails_loses_no_whole_update(error, quick, done):
    class Breaks(CabinetEnv):
        def step(self, action):
            if "write 1" in done:
                raise error("gone")
            return super().step(action)

    few = {"tasks_per_update": 2, "group_size": 2, "eval_tasks": 2, "warm_start.episodes": 0}
    with pytest.raises(UserCodeError, match="gone"):
        train(changed(quick, checkpoint_every=9, **few), env=Breaks)
    assert done[-1] == "save 2"
