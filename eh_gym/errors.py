"""The exceptions of Elastic Horizon.

EHError
├── ConfigError (ValueError)         an argument or setting is wrong; the message says how to fix it
├── StateError (ValueError)          a saved state does not fit the object that loads it
├── MissingBackendError              an environment's backend is not installed; the message names the command
├── MissingExtraError (ImportError)  an optional dependency is not installed; the message names the command
├── ForeignPackageError (ImportError)  a package of another project is called envs; the message says where it is
├── UserCodeError                    an environment or an agent that a run was given failed; the message has the place
├── SamplerError                     the sampler failed; a run can resume from its checkpoint
└── WorkerError                      a backend process failed; its episode is lost, nothing else
    ├── WorkerDied                   it exited, crashed or was killed
    ├── WorkerTimeout                it did not answer within its deadline, and was killed
    ├── WorkerProtocolError          it sent something that is not a frame, and was killed
    ├── WorkerVersionMismatch        it speaks another protocol version
    └── WorkerCallError              it answered that the call raised; the worker goes on
"""

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
    "WorkerVersionMismatch",
]


class EHError(Exception):
    """Base of all errors of Elastic Horizon."""


class ConfigError(EHError, ValueError):
    """An argument or setting is wrong."""


class StateError(EHError, ValueError):
    """A saved state does not fit the object that loads it."""


class MissingBackendError(EHError, RuntimeError):
    """An environment's backend is not installed."""


class MissingExtraError(EHError, ImportError):
    """An optional dependency is not installed."""


class ForeignPackageError(EHError, ImportError):
    """A package of another project is called envs."""


class UserCodeError(EHError, RuntimeError):
    """An environment or an agent that a run was given failed."""


class SamplerError(EHError, RuntimeError):
    """The sampler's engine failed, and no other engine can take over its requests."""


class WorkerError(EHError, RuntimeError):
    """A backend process failed."""


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


class WorkerVersionMismatch(WorkerError):
    """The worker speaks another version of the protocol."""


class WorkerCallError(WorkerError):
    """The call raised an exception in the worker, which goes on."""
