"""The client of __ENV_ID__: `AutoEnv.from_env("__NAME__", base_url=...)` finds it."""

from openenv.core.env_server.types import Action
from openenv.core.generic_client import GenericEnvClient


class __CLASS__Action(Action):
    """What the model wrote."""

    message: str


class __CLASS__Env(GenericEnvClient):
    """A session. An observation is a dict: `text`, `terminated`, `truncated`, `success`, `info`, and at first
    `system_prompt`.
    """
