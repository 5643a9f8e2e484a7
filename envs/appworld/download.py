"""Downloads one large file. An interrupted download continues where it stopped.

The content is not checked here, because no digest of AppWorld's data is published. ``install.py`` checks it, with the
archive's own checksums and a look at the unpacked files.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import socket
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path

from eh_gym.errors import EHError

__all__ = ["download", "split_url"]

_CHUNK = 1 << 18
_ATTEMPTS = 3  # if the connection ends too early; a server that cannot be reached, or refuses, is tried once
_PROGRESS_S = 5.0


class _Cut(Exception):
    """The connection ended too early. Another attempt may continue."""


def download(url: str, target: Path, *, timeout_s: float = 10.0, say: Callable[[str], None] = print) -> None:
    """Downloads ``url`` to ``target``. The bytes first go to ``target.part``, which a later call completes.

    Args:
        url: The file's address, http or https.
        target: The file to make, with its folder. It appears only when it is complete.
        timeout_s: The longest time in seconds to reach the server, and to wait for more bytes.
        say: Called with a line about the progress from time to time.

    Raises:
        EHError: The server could not be reached, refused, or hung up too often. The bytes that came are kept.
    """
    part = target.with_name(target.name + ".part")
    part.parent.mkdir(parents=True, exist_ok=True)
    _reach(url, timeout_s)
    for attempt in range(_ATTEMPTS):
        try:
            _fetch(url, part, timeout_s, say)
        except _Cut as cut:
            say(f"{cut}; {'going on' if attempt < _ATTEMPTS - 1 else 'giving up'}")
            last = cut
        else:
            os.replace(part, target)
            _note(part).unlink(missing_ok=True)
            return
    raise EHError(f"{url}: {last}; the bytes that came are kept, and the next run goes on from there")


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


def _reach(url: str, timeout_s: float) -> None:
    """Fails fast if there is no network. urllib would wait for its timeout at each of the server's many addresses."""
    parts = split_url(url)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise EHError(f"{url} is neither an http address nor an existing file")
    if parts.scheme in urllib.request.getproxies() and not urllib.request.proxy_bypass(parts.hostname):
        return
    deadline, last = time.monotonic() + timeout_s, "no address"
    try:
        found = socket.getaddrinfo(parts.hostname, parts.port or parts.scheme, type=socket.SOCK_STREAM)
    except OSError as error:
        raise EHError(f"{parts.hostname} cannot be reached: {error}") from error
    for family, kind, protocol, _, address in found:
        left = deadline - time.monotonic()
        if left <= 0:
            break
        try:
            with socket.socket(family, kind, protocol) as connection:
                connection.settimeout(left)
                connection.connect(address)
                return
        except OSError as error:
            last = str(error)
    raise EHError(f"{parts.hostname} cannot be reached: {last}")


def _fetch(url: str, part: Path, timeout_s: float, say: Callable[[str], None]) -> None:
    """Makes one request, for the bytes that are still missing."""
    have, etag = _begun(url, part)
    headers = {"Accept-Encoding": "identity"}
    if have:
        # If-Range: if the file has changed, the server sends all of the new file instead of its end.
        headers |= {"Range": f"bytes={have}-", "If-Range": etag}
    try:
        answer = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout_s)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != 416 or not have:
            raise EHError(f"{url}: the server answers {error.code} {error.reason}") from error
        part.unlink()
        raise _Cut("the server's file is not longer than what was kept; starting again") from error
    except (OSError, http.client.HTTPException) as error:
        raise EHError(f"{url} cannot be downloaded: {getattr(error, 'reason', None) or error}") from error
    with answer, part.open("ab") as file:
        if answer.headers.get_content_type() == "text/html":  # checked before any kept bytes are cut off
            raise EHError(f"{url}: the server answers with a web page; does this network ask for a login?")
        have = _continues(answer, have)
        file.truncate(have)
        length = answer.headers.get("Content-Length")
        size = have + int(length) if length and length.isdigit() else None
        _note(part).write_text(json.dumps({"url": url, "etag": answer.headers.get("ETag")}), encoding="utf-8")
        have = _receive(answer, file.write, have, size, say)
    if size is not None and have != size:
        raise _Cut(f"the connection ended at {have:,} of {size:,} bytes")


def _receive(
    answer: http.client.HTTPResponse,
    write: Callable[[bytes], object],
    have: int,
    size: int | None,
    say: Callable[[str], None],
) -> int:
    told = time.monotonic()
    while True:
        try:
            chunk = answer.read1(_CHUNK)
        except (OSError, http.client.HTTPException) as error:
            raise _Cut(f"the connection broke at {have:,} bytes ({error})") from error
        if not chunk:
            return have
        write(chunk)
        have += len(chunk)
        if time.monotonic() - told > _PROGRESS_S:
            told = time.monotonic()
            say(f"{have / 1e6:,.0f} of {f'{size / 1e6:,.0f}' if size else '?'} MB")


def _continues(answer: http.client.HTTPResponse, have: int) -> int:
    """The index of the answer's first byte in the file."""
    if answer.status != 206:
        return 0
    start = re.match(r"bytes (\d+)-", answer.headers.get("Content-Range", ""))
    if start is None or int(start[1]) != have:
        raise EHError("the server answers with another part of the file than the one requested")
    return have


def _begun(url: str, part: Path) -> tuple[int, str]:
    """How many bytes there are to go on from, and the ETag of their file; 0 bytes if the ETag is not known."""
    with contextlib.suppress(OSError, ValueError):
        note = json.loads(_note(part).read_text(encoding="utf-8"))
        # A weak tag does not promise the same bytes.
        if note["url"] == url and note["etag"] and not note["etag"].startswith("W/"):
            return part.stat().st_size, note["etag"]
    return 0, ""


def _note(part: Path) -> Path:
    return part.with_name(part.name + ".json")
