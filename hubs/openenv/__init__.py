"""The client of __ENV_ID__ over OpenEnv's protocol."""

from .client import __CLASS__Action, __CLASS__Env

__all__ = ["__CLASS__Action", "__CLASS__Env"]
