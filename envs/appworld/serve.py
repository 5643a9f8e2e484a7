"""``python -m envs serve appworld``: runs one server in the foreground, from its arguments to its end. It keeps no log."""

from __future__ import annotations

import argparse
import contextlib
import signal
import threading
from collections.abc import Sequence
from types import FrameType

from eh_gym.errors import ConfigError
from envs.appworld import data
from envs.appworld.hosts import Host, LocalHost, Settings
from envs.appworld.leases import Leases
from envs.appworld.server import Server
from envs.runtime import backend_python

__all__ = ["serve"]


def serve(options: argparse.Namespace, token: str, *, told: bool) -> int:
    """Serves until SIGINT or SIGTERM, and then ends all worlds.

    Args:
        options: The command line.
        token: What clients must send.
        told: Whether the token was made here and must be printed.

    Raises:
        ConfigError: An argument is wrong.
        MissingBackendError: AppWorld or a split's data are not installed.
    """
    if unknown := sorted(set(options.split) - set(data.SPLITS)):
        raise ConfigError(f"AppWorld has the splits {', '.join(data.SPLITS)}, not {unknown[0]}")
    python, roots = backend_python("appworld"), _roots(options.split)

    def make(settings: Settings) -> Host:
        return LocalHost(python, roots, settings)

    with contextlib.closing(Leases(make, options.split, options.max_worlds, options.idle_timeout_s)) as leases:
        try:
            server = Server(leases, token, options.host, options.port)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"cannot listen on {options.host} port {options.port}: {error}; choose another"
            ) from error
        with server:
            _stop_on_signals(server)
            tasks = ", ".join(f"{split} ({len(leases.task_ids(split))} tasks)" for split in options.split)
            print(f"serving AppWorld, {tasks}, at {server.url}", flush=True)
            print(f"token: {token}" if told else "token: as given", flush=True)
            server.serve_forever(poll_interval=0.1)
    print("all worlds are closed", flush=True)
    return 0


def _roots(splits: Sequence[str]) -> data.Roots:
    found = {data.roots(split) for split in splits}
    if len(found) > 1:
        raise ConfigError("split mini has its own data; serve it with another server, on another port")
    return found.pop()


def _stop_on_signals(server: Server) -> None:
    def stop(number: int, frame: FrameType | None) -> None:
        threading.Thread(target=server.shutdown).start()  # it waits for serve_forever(), which this thread runs

    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, stop)
