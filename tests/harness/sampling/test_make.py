"""Which sampler the settings make."""

from collections.abc import Callable
from typing import Any

import pytest
from transformers import Qwen2ForCausalLM

from eh_gym.errors import MissingExtraError
from harness.model.policy import Policy
from harness.sampling.make import make_sampler
from harness.settings.sampling import VLLMSampling
from harness.types.sampler import Sampler

Made = Callable[[str], tuple[Qwen2ForCausalLM, Sampler]]


def test_without_vllm_the_install_command_is_named(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "vllm", None)
    model = made("transformers")[0]

    policy: Any = Policy(model, None, None)  # type: ignore[arg-type]
    with pytest.raises(MissingExtraError, match=r"pip install -e '.\[train,vllm\]'"):
        make_sampler(VLLMSampling(), policy)
