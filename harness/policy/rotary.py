"""One set of rotary frequencies for all episodes of a run, in models that have two."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from eh_gym.errors import ConfigError

__all__ = ["check_frequencies", "settle_frequencies"]


def settle_frequencies(model: PreTrainedModel, max_context: int = 0) -> None:
    """Fixes the frequencies of LongRoPE (Phi-3, Phi-4-mini): those for long texts, unless no episode can be that long.

    transformers chooses between the two sets in each forward pass, by the longest text in it. So an episode's log-probabilities
    would change with the others in its batch, and the cached keys of one episode would come from both sets. vLLM chooses once, by
    the longest context.

    Args:
        model: The model, which is changed; one without LongRoPE is left as it is.
        max_context: The most tokens of an episode; 0 for the model's positions.
    """
    module: Any  # its attributes are no tensors
    for module in model.modules():
        if getattr(module, "rope_type", None) != "longrope":
            continue
        config = module.config
        native = config.rope_parameters["original_max_position_embeddings"]
        length = min(max_context or config.max_position_embeddings, native + 1)  # above `native` all are the same
        frequencies, scaling = ROPE_INIT_FUNCTIONS["longrope"](config, module.inv_freq.device, seq_len=length)
        module.inv_freq.copy_(frequencies)
        module.attention_scaling = scaling
        module.rope_type = "default"  # never chosen again
        module.long_from, module.is_long = native, length > native


def check_frequencies(model: PreTrainedModel, max_model_len: int) -> None:
    """Checks that a vLLM server with this context takes the same set as `settle_frequencies` has taken.

    Raises:
        ConfigError: It takes the other one.
    """
    module: Any
    for module in model.modules():
        native = getattr(module, "long_from", None)
        if native is not None and (max_model_len > native) != module.is_long:
            raise ConfigError(
                f"a server with --max-model-len {max_model_len} takes LongRoPE's frequencies for "
                f"{'short' if module.is_long else 'long'} texts, and the run takes those for texts of "
                f"{'more than' if module.is_long else 'at most'} {native} tokens; "
                "start the servers with the --max-model-len that the run has as --max-context"
            )
