"""Makes the sampler that the settings name."""

import torch

from harness.model.policy import Policy
from harness.sampling.transformers import TransformersSampler
from harness.sampling.vllm.engine import VLLMSampler
from harness.sampling.vllm.http import VLLMServer
from harness.sampling.vllm.server import VLLMServerSampler
from harness.sampling.vllm.settings import check_server
from harness.settings.sampling import Sampling, VLLMSampling, VLLMServerSampling
from harness.types.sampler import Sampler


def check_engine(settings: Sampling, device: str) -> None:
    """Raises ConfigError if a server does not answer, or is not set up as docs/vllm.md says, before hours of work for
    it.
    """
    for url in settings.url.split(",") if isinstance(settings, VLLMServerSampling) else ():
        check_server(VLLMServer(url), over_nccl=torch.device(device).type == "cuda")


def make_sampler(
    settings: Sampling,
    policy: Policy,
    *,
    device: str | None = None,
    sends: bool = True,
    dtype: str | None = None,
    slots: int | None = None,
    sharers: int = 1,
    version: int = 0,
) -> Sampler:
    """Makes the sampler of a policy. A vLLM engine or server receives the policy's weights here for the first time.

    Args:
        settings: Which sampler.
        policy: Whose weights it samples with.
        device: The device of vLLM's engine, or from which weights are sent to servers; None for the policy's.
        sends: Whether this process sends the weights to the servers. If several processes share the servers, one of
            them sends.
        slots: The most requests at once, for an engine in this process; None for the engine's default.
        sharers: The number of processes that sample with the same servers.
        version: The number of policy updates that the weights have seen. Later versions count on from it.
        dtype: The type in which the policy computes; None for the type of its weights. Sharded weights are wider.
    """
    max_context = settings.max_context or None
    if isinstance(settings, VLLMServerSampling):
        return VLLMServerSampler(
            policy.model,
            settings.url.split(","),
            max_context=max_context,
            device=device,
            sends=sends,
            sharers=sharers,
            version=version,
        )
    if isinstance(settings, VLLMSampling):
        return VLLMSampler(
            policy.model,
            max_context=max_context,
            dtype=dtype,
            gpu_memory_utilization=settings.gpu_memory_utilization,
            engine_args=settings.engine_args,
            device=device,
            slots=slots,
            version=version,
        )
    return TransformersSampler(policy.model, max_context=max_context, version=version)
