import pytest
import torch

from eh_gym.errors import ConfigError
from harness.machine import runtime


@pytest.mark.parametrize(("units", "chosen"), [(False, "float32"), (True, "bfloat16")])
def test_the_type_that_is_left_to_the_machine_is_the_one_that_it_has_units_for(monkeypatch, recwarn, units, chosen):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_f": True, "amx_bf16": units})
    assert runtime.choose_dtype("auto", "cpu") == chosen
    assert runtime.choose_dtype("auto", "cuda:1") == "bfloat16"
    assert str(runtime.pick_dtype("auto", "cpu")) == f"torch.{chosen}"
    assert not recwarn


def test_a_device_is_picked_if_the_machine_has_it_without_a_tensor_on_gpu_0(monkeypatch):
    assert runtime.pick_device("cpu") == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert runtime.pick_device("auto") == "cpu"
    with pytest.raises(ConfigError, match=r"'cuda'.*--device"):
        runtime.pick_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for name in ("auto", "cuda"):
        assert runtime.pick_device(name) == "cuda"


def test_a_missing_gpu_is_told_in_one_line(monkeypatch):
    def fail(*_, **__):
        raise RuntimeError(
            "CUDA error: invalid device ordinal\nCompile with `TORCH_USE_CUDA_DSA` to enable assertions."
        )

    monkeypatch.setattr(torch, "empty", fail)
    with pytest.raises(ConfigError) as raised:
        runtime.pick_device("cuda:1")
    expected = "device 'cuda:1' is not available here (CUDA error: invalid device ordinal); use --device cpu or auto"
    assert str(raised.value) == expected
