"""``python -m envs serve``: its arguments and its token. envs/openenv has the server."""

import argparse
from pathlib import Path

from envs.openenv.token import TOKEN_VARIABLE, find_token


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("env", metavar="ENV_ID", help="an environment with text actions, such as EH-BFCL-v0")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    parser.add_argument("--port", type=int, default=8765, help="port to listen on, 0 for any (%(default)s)")
    parser.add_argument(
        "--token-file",
        type=Path,
        help=f"file with the token that clients must send; without it, {TOKEN_VARIABLE} is read",
    )
    parser.add_argument(
        "--open", action="store_true", help="without a token of yours, let everybody play who can reach the address"
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
        "--max-sessions", type=int, default=128, help="most sessions at once; one of AppWorld takes 59 MB (%(default)s)"
    )
    parser.add_argument(
        "--idle-timeout-s",
        type=float,
        default=900.0,
        help="seconds of silence after which a session is closed (%(default)g)",
    )


def serve(options: argparse.Namespace) -> int:
    token, made_here = find_token(options.token_file, options.host, is_open=options.open)
    from envs.openenv import server  # needs an extra

    return server.serve(options, token, show_token=made_here)
