"""``python -m envs serve appworld``: runs one server in the foreground, from its arguments to its end. It keeps no log."""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

from eh_gym.errors import ConfigError
from envs.appworld import data
from envs.appworld.hosts import Host, LocalHost, Settings
from envs.appworld.leases import Leases
from envs.appworld.remote import TOKEN_VARIABLE
from envs.appworld.server import Server, checked_token, is_loopback
from envs.runtime import backend_python

__all__ = ["add_arguments", "find_token", "serve"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.add_argument(
        "what", metavar="ENV_ID|appworld", help="an environment, such as EH-BFCL-v0; or appworld, its worlds alone"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    parser.add_argument("--port", type=int, default=8765, help="port to listen on, 0 for any (%(default)s)")
    parser.add_argument("--token", help="token that clients must send; other users of this machine can see it in `ps`")
    parser.add_argument(
        "--token-file", type=Path, help=f"file with the token; without either, {TOKEN_VARIABLE} is read"
    )
    parser.add_argument(
        "--split",
        nargs="+",
        default=["train"],
        metavar="SPLIT",
        help="splits to serve, the first is the default (train)",
    )
    parser.add_argument(
        "--env-args", default="{}", help="what the environment takes, as JSON, but the split (%(default)s)"
    )
    parser.add_argument(
        "--max-sessions", type=int, default=128, help="most sessions of an environment at once (%(default)s)"
    )
    parser.add_argument("--max-worlds", type=int, default=128, help="most worlds of appworld, 70 MB each (%(default)s)")
    parser.add_argument(
        "--idle-timeout-s",
        type=float,
        default=900.0,
        help="seconds of silence after which a client's sessions or worlds are closed (%(default)g)",
    )


def serve(options: argparse.Namespace) -> int:
    """Serves until SIGINT or SIGTERM, and then ends all worlds.

    Raises:
        ConfigError: An argument is wrong, or other machines can reach the address and there is no token.
        MissingBackendError: AppWorld or a split's data are not installed.
    """
    if unknown := sorted(set(options.split) - set(data.SPLITS)):
        raise ConfigError(f"AppWorld has the splits {', '.join(data.SPLITS)}, not {unknown[0]}")
    token, told = find_token(options.token, options.token_file, options.host)
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


def find_token(given: str | None, file: Path | None, host: str) -> tuple[str, bool]:
    """The token that clients must send, and whether it was made here and must be printed.

    Raises:
        ConfigError: Two tokens are given, or none although other machines can reach the host, or one that is no token.
    """
    if given and file:
        raise ConfigError("--token and --token-file both give the token; use only one of them")
    if file is not None:
        try:
            given = file.read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            raise ConfigError(f"the token cannot be read: {error}") from error
        return checked_token(given), False
    given = given or os.environ.get(TOKEN_VARIABLE)
    if given:
        return checked_token(given), False
    if not is_loopback(host):
        raise ConfigError(
            f"{host} can be reached from other machines, so the server needs a token; give --token-file or set {TOKEN_VARIABLE} "
            '(python -c "import secrets; print(secrets.token_urlsafe())" makes one)'
        )
    return secrets.token_urlsafe(), True


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
