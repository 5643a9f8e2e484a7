"""What the tests for a GPU are made of, where there is none."""

import pytest
import torch
from gpus import TINY, assert_sound, model_flops, need_gpu, new_episodes, new_policy


@pytest.mark.parametrize(
    ("tool", "hidden", "outcome"),
    [(None, None, "Skipped"), ("/usr/bin/nvidia-smi", None, "Failed"), ("/usr/bin/nvidia-smi", "", "Skipped")],
)
def test_a_gpu_that_torch_cannot_use_is_a_failure(monkeypatch, tool, hidden, outcome):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("gpus.Path.glob", lambda *_: iter(()))
    monkeypatch.setattr("gpus.shutil.which", lambda _: tool)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if hidden is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    with pytest.raises(BaseException, match="GPU") as raised:
        need_gpu()
    assert type(raised.value).__name__ == outcome


def test_model_flops_by_hand():
    episodes = new_episodes(2, 128, 512)
    # A layer: q and o 64 x 64, k and v 64 x 32, biases 128; three of 64 x 128; two norms of 64. And one norm at the
    # end.
    layers = 2 * (2 * 64 * 64 + 2 * 64 * 32 + 64 + 32 + 32 + 3 * 64 * 128 + 2 * 64) + 64
    written = 2 * 84  # of 112 tokens after the prompt of 16, the first 84
    expected = 256 * layers * 6 + 12 * 2 * 64 * 2 * sum(range(128)) + 6 * 512 * 64 * written
    assert model_flops(TINY, episodes, adapters=False) == expected
    policy = new_policy(TINY, "cpu")
    assert layers == sum(p.numel() for name, p in policy.model.named_parameters() if "embed" not in name)


def test_a_hand_over_that_lost_the_weights_is_found():
    row = {"rollout/policy_lag": 0, "rollout/environment_errors": 0, "train/skipped_steps": 0}
    sound = [row | {"train/logp_difference_mean": x} for x in (0.001, 0.001)]
    assert_sound(sound)
    with pytest.raises(AssertionError):
        assert_sound([sound[0], row | {"train/logp_difference_mean": 0.3}])
    with pytest.raises(AssertionError):
        assert_sound([sound[0], row | {"train/logp_difference_mean": None}])  # NaN
