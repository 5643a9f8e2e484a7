"""``python -m envs serve``: its arguments, its token, and which server it starts."""

from __future__ import annotations

import argparse
import os
import secrets
from pathlib import Path

from eh_gym.errors import ConfigError
from envs.appworld import serve as appworld
from envs.appworld.remote import TOKEN_VARIABLE
from envs.appworld.server import checked_token, is_loopback

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
    """Serves what the command line names until SIGINT or SIGTERM.

    Raises:
        ConfigError: An argument is wrong, or other machines can reach the address and there is no token.
        MissingBackendError: A backend or its data are not installed.
        MissingExtraError: OpenEnv is not installed.
    """
    token, told = find_token(options.token, options.token_file, options.host)
    if options.what == "appworld":
        return appworld.serve(options, token, told=told)
    from envs.openenv import server  # needs an extra

    return server.serve(options, token, told=told)


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
