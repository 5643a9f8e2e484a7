"""Makes the sampler that the settings name."""

import contextlib
import pkgutil
import threading

from eh_gym.errors import EHError
from harness.model.policy import Policy
from harness.settings.sampling import Sampling
from harness.types.sampler import Sampler


def check_engine(settings: Sampling, device: str) -> None:
    """Raises ConfigError if an engine does not answer, or is not set up as it must be, before hours of work for it."""
    if settings.checked_by:
        pkgutil.resolve_name(settings.checked_by)(settings, device)


def preload(settings: Sampling) -> None:
    """Begins to import an engine's package in a thread, which may take long, while the policy is made."""

    def run() -> None:
        with contextlib.suppress(EHError):  # the sampler says it
            pkgutil.resolve_name(settings.preloaded_by)()

    if settings.preloaded_by:
        threading.Thread(target=run, name="eh-preload", daemon=True).start()


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
    """Makes the sampler of a policy. One with weights of its own receives them here for the first time.

    Args:
        settings: Which sampler.
        policy: Whose weights it samples with.
        device: The device of an engine in this process, or from which weights are sent; None for the policy's.
        sends: Whether this process sends the weights. If several processes share servers, one of them sends.
        dtype: The type in which the policy computes; None for the type of its weights. Sharded weights are wider.
        slots: The most requests at once, for an engine in this process; None for the engine's default.
        sharers: The number of processes that sample with the same servers.
        version: The number of policy updates that the weights have seen. Later versions count on from it.
    """
    arguments = settings.arguments(device=device, sends=sends, dtype=dtype, slots=slots, sharers=sharers)
    kind = pkgutil.resolve_name(settings.implementation)
    made: Sampler = kind(policy.model, max_context=settings.max_context or None, version=version, **arguments)
    return made
