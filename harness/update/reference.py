"""The frozen policy of the KL term, which a run keeps in its folder."""

import copy
import dataclasses
from pathlib import Path

from eh_gym.errors import ConfigError, StateError
from harness.machine.ranks import Ranks
from harness.model.lora import has_lora
from harness.model.policy import Policy, load_policy
from harness.records.files import room_for


def reference_policy(policy: Policy, folder: Path, device: str, ranks: Ranks, *, first: bool, packing: bool) -> Policy:
    """Returns the policy before the first update, frozen and sharded.

    With LoRA this is `policy` itself, because its own weights are frozen. If `policy` had no update yet (`first`), the
    reference is a copy of it, which is also written to the folder. Otherwise it is loaded from there.

    Raises:
        StateError: The folder is missing or damaged, or the disk is full.
    """
    if has_lora(policy.model):
        return policy
    if first:
        reference = dataclasses.replace(policy, model=copy.deepcopy(policy.model))
        if ranks.first:
            with room_for(folder, half=folder):
                policy.save(folder)
    else:
        home, dtype, kept = str(policy.model.device), policy.model.dtype, None
        if ranks.first:
            try:
                kept = load_policy(folder, dtype=dtype, device=home, packing=packing)
            except ConfigError as error:
                raise StateError(
                    f"{folder}, the first policy of the run, which --kl-coef compares with, can't be loaded "
                    f"({str(error).split('; ')[0]}); restore the folder, or kl_coef in config.json if it was 0"
                ) from error
        reference = ranks.hand_out(kept)
    reference.model.eval().requires_grad_(False)
    ranks.shard(reference, device)
    return reference
