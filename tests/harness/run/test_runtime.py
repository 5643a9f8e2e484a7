"""The device, the weight type and the threads of a run."""

import os
import sys
from pathlib import Path

import pytest
import torch

from eh_gym.errors import ConfigError
from harness.run import runtime


def test_a_cpu_without_units_for_bfloat16_is_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_f": True, "avx512_bf16": False})
    with pytest.warns(RuntimeWarning, match="--dtype float32"):
        assert runtime.pick_dtype("bfloat16", "cpu") == torch.bfloat16


@pytest.mark.parametrize(("units", "chosen"), [(False, "float32"), (True, "bfloat16")])
def test_the_type_that_is_left_to_the_machine_is_the_one_that_it_has_units_for(
    monkeypatch: pytest.MonkeyPatch, recwarn: pytest.WarningsRecorder, units: bool, chosen: str
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: {"avx512_f": True, "amx_bf16": units})
    assert runtime.choose_dtype("auto", "cpu") == chosen
    assert runtime.choose_dtype("auto", "cuda:1") == "bfloat16"
    assert str(runtime.pick_dtype("auto", "cpu")) == f"torch.{chosen}"
    assert not recwarn


def test_a_device_is_picked_if_the_machine_has_it_without_a_tensor_on_gpu_0(monkeypatch: pytest.MonkeyPatch) -> None:
    assert runtime.pick_device("cpu") == "cpu"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert runtime.pick_device("auto") == "cpu"
    with pytest.raises(ConfigError, match=r"'cuda'.*--device"):
        runtime.pick_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for name in ("auto", "cuda"):
        assert runtime.pick_device(name) == "cuda"


@pytest.mark.skipif(sys.platform != "linux", reason="what is kept is glibc's")
def test_the_memory_of_freed_tensors_goes_back_to_the_system() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    torch.empty(5_000_000)  # after it glibc takes pieces of up to 20 MB from its heap, and no longer from the system
    pieces = [torch.ones(1_000_000) for _ in range(64)]
    between = pieces[::2]
    pieces.clear()
    kept = resident()
    runtime.return_memory("cpu")
    assert resident() < kept - 100e6
    assert len(between) == 32


def test_the_tests_see_no_gpu() -> None:
    """On a machine with one, runs with --device auto trained on it, and had other numbers than a CPU."""
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
