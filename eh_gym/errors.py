"""The exceptions of Elastic Horizon. A message says how to fix what is wrong."""

__all__ = [
    "ConfigError",
    "EHError",
    "ForeignPackageError",
    "MissingBackendError",
    "MissingExtraError",
    "SamplerError",
    "StateError",
    "UserCodeError",
    "WorkerCallError",
    "WorkerDied",
    "WorkerError",
    "WorkerProtocolError",
    "WorkerTimeout",
]


class EHError(Exception):
    """Base of all errors of Elastic Horizon."""


class ConfigError(EHError, ValueError):
    """An argument or setting is wrong."""


class StateError(EHError, ValueError):
    """A saved state does not fit the object that loads it."""


class MissingBackendError(EHError, RuntimeError):
    """An environment's backend is not installed. The message names the command."""


class MissingExtraError(EHError, ImportError):
    """An optional dependency is not installed. The message names the command."""


class ForeignPackageError(EHError, ImportError):
    """A package of another project is called envs. The message says where it is."""


class UserCodeError(EHError, RuntimeError):
    """An environment or an agent that a run was given failed. The message has the place."""


class SamplerError(EHError, RuntimeError):
    """The sampler's engine failed, and no other can take over its requests. A run can resume from its checkpoint."""


class WorkerError(EHError, RuntimeError):
    """A backend process failed. Its episode is lost, nothing else."""


class WorkerDied(WorkerError):
    """The worker process exited, crashed or was killed.

    Attributes:
        called: Whether the call may have reached it. If not, the call has had no effect.
        signal: The number of the signal that ended it; 0 if none did.
    """

    def __init__(self, *args: object, called: bool = True, signal: int = 0) -> None:
        super().__init__(*args)
        self.called, self.signal = called, signal


class WorkerTimeout(WorkerError):
    """The worker did not answer within its deadline and was killed."""


class WorkerProtocolError(WorkerError):
    """The worker sent bytes that are not a frame of the protocol and was killed."""


class WorkerCallError(WorkerError):
    """The call raised an exception in the worker, which goes on."""
