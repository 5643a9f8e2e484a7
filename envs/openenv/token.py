"""The token of a served environment, for server and client."""

import ipaddress
import os
import re
import secrets
from pathlib import Path

from eh_gym.errors import ConfigError

TOKEN_VARIABLE = "EH_ENV_TOKEN"
_TOKEN = re.compile(r"[!-~]{16,200}")


def checked_token(token: str) -> str:
    """Returns the token. Raises ConfigError if it does not have 16 to 200 characters of visible ASCII."""
    if not _TOKEN.fullmatch(token):
        raise ConfigError("a token must have 16 to 200 characters of visible ASCII, without spaces")
    return token


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address.

    >>> [is_loopback(host) for host in ("127.0.0.1", "localhost", "::1", "0.0.0.0", "example.org")]
    [True, True, True, False, False]
    """
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def find_token(file: Path | None, host: str, *, is_open: bool = False) -> tuple[str, bool]:
    """The token that clients must send, and whether it was made here and must be printed.

    Args:
        file: Holds the token. Without it, the environment variable EH_ENV_TOKEN is read.
        host: The address that the server listens on.
        is_open: Whether to serve without a token if no token is given; it is then empty.
    """
    if file is not None:
        try:
            given = file.read_text(encoding="utf-8").strip()
        except (OSError, ValueError) as error:
            raise ConfigError(f"the token cannot be read: {error}") from error
        return checked_token(given), False
    if from_environment := os.environ.get(TOKEN_VARIABLE):
        return checked_token(from_environment), False
    if is_open:
        return "", False
    if not is_loopback(host):
        raise ConfigError(
            f"{host} can be reached from other machines, so the server needs a token; give --token-file or set "
            f"{TOKEN_VARIABLE} "
            '(python -c "import secrets; print(secrets.token_urlsafe())" makes one), or give --open if everybody may '
            "play"
        )
    return secrets.token_urlsafe(), True
