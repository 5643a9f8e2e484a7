"""Downloads one large file.

The content is not checked here, because no digest of AppWorld's data is published. ``install.py`` checks it, with the
archive's own checksums and a look at the unpacked files.
"""

from __future__ import annotations

import http.client
import os
import shutil
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

from eh_gym.errors import EHError

__all__ = ["download", "split_url"]


def download(url: str, target: Path, *, timeout_s: float = 10.0) -> None:
    """Downloads ``url`` to ``target``.

    Args:
        url: The file's address, http or https.
        target: The file to make, with its folder. It appears only when it is complete.
        timeout_s: The longest time in seconds to reach the server, and to wait for more bytes.

    Raises:
        EHError: The server could not be reached, refused, or hung up too early.
    """
    parts = split_url(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise EHError(f"{url} is neither an http address nor an existing file")
    part = target.with_name(target.name + ".part")
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:
            if answer.headers.get_content_type() == "text/html":
                raise EHError(f"{url}: the server answers with a web page; does this network ask for a login?")
            part.parent.mkdir(parents=True, exist_ok=True)
            with part.open("wb") as file:
                shutil.copyfileobj(answer, file)
            size, came = answer.headers.get("Content-Length"), part.stat().st_size
            if size and came != int(size):
                raise EHError(f"{url}: the connection ended at {came:,} of {int(size):,} bytes; try again")
        os.replace(part, target)
    except urllib.error.HTTPError as error:
        error.close()
        raise EHError(f"{url}: the server answers {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        raise EHError(f"{url} cannot be downloaded: {getattr(error, 'reason', None) or error}") from error
    finally:
        part.unlink(missing_ok=True)


def split_url(url: str) -> urllib.parse.SplitResult:
    """The parts of an address.

    Raises:
        EHError: It is malformed.
    """
    try:
        parts = urllib.parse.urlsplit(url)
        _ = parts.port  # read when it is asked for
    except ValueError as error:
        raise EHError(f"{url} is not an address: {error}") from error
    return parts
