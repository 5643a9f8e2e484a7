"""The model: which one, where and in which precision it computes, and how its chat is written."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from eh_gym.errors import ConfigError
from eh_gym.ranges import Range
from harness.settings.section import FIRST, Changes, Section

REASONING_FORMATS = ("auto", "none", "tags", "opened", "harmony")
"""How a model writes its thoughts; `harness.chat.reasoning` reads them. Instead of a name, the text may be two tags."""

# What every rendering of the chat sets by itself.
_OURS = ("messages", "conversation", "tools", "chat_template", "add_generation_prompt", "tokenize", "strftime_now")


@dataclass(frozen=True)
class Model(Section):
    """Which language model acts, and how its chat is written."""

    changes = Changes.RESULT

    model: Annotated[str, FIRST] = ""
    """The model: a Hugging Face folder, a hub id, or tiny (made on the spot)."""
    dtype: Literal["auto", "float32", "bfloat16"] = "bfloat16"
    """The type of the computation and of the sampler's weights; the optimizer keeps float32. auto takes bfloat16, but
    float32 on a CPU that is slow with it."""
    device: Annotated[str, Changes.MACHINE, FIRST] = "auto"
    """The device: cpu, cuda, cuda:1, mps. auto takes a GPU if there is one."""
    threads: Annotated[int | None, Range(0), Changes.MACHINE] = None
    """The number of torch threads; 0 leaves torch's default. By default 1 for models of less than 50 million
    parameters, where it is fastest, and else torch's default."""
    max_observation_tokens: Annotated[int, Range(16, zero=True)] = 0
    """The most tokens of an observation. A longer one loses its middle; 0 sets no limit."""
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Further variables of the chat template, as a JSON object, such as '{"enable_thinking": false}'."""
    reasoning_format: str = "auto"
    """How the model writes its thoughts: tags (<think>), opened (by the template), harmony (gpt-oss), none, or two
    other tags, such as '<seed:think> </seed:think>'. auto finds it."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if taken := [name for name in self.chat_template_kwargs if name in _OURS]:
            raise ConfigError(f"--chat-template-kwargs must not have {', '.join(taken)}; leave it out")
        if self.reasoning_format not in REASONING_FORMATS and len({*(self.tags or ())}) != 2:
            raise ConfigError(
                f"--reasoning-format must be one of {', '.join(REASONING_FORMATS)}, or two different tags with a blank "
                f"between, got {self.reasoning_format!r}"
            )

    @property
    def tags(self) -> tuple[str, str] | None:
        tags = self.reasoning_format.split()
        return (tags[0], tags[1]) if len(tags) == 2 else None
