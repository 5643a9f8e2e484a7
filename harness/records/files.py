"""Files and folders of a run: written whole, read with a clear error, and locked against a second process."""

import errno
import hashlib
import json
import os
import re
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from eh_gym.errors import ConfigError, EHError, StateError
from eh_gym.processes import lock

_CHUNK = 1 << 22  # bytes
_POLL_S = 0.1
_PATIENCE_S = 10.0  # a process that is ending may need this long to release its lock

# The messages of a full disk. The last two are torch's.
_FULL = re.compile(r"no space left|quota exceeded|file too large|unexpected pos|failed writing file", re.IGNORECASE)


class DiskFull(StateError):
    """A disk has no room for a file."""


@contextmanager
def room_for(path: Path | str, half: Path | None = None) -> Iterator[None]:
    """Turns any library's error of a full disk into a DiskFull that names `path`. Everything that writes to a disk uses
    this.

    Then the folder `half`, which the block could not fill, is removed.
    """
    try:
        yield
    except BaseException as error:  # torch's CheckpointException is no Exception
        if isinstance(error, EHError) or not _FULL.search(str(error)):
            raise
        if half:
            shutil.rmtree(half, ignore_errors=True)
        raise DiskFull(f"the disk is full, and {path} was not written") from error


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yields a path next to `path` to write to. After the block, the file gets its name, with all of its data on disk.

    If the process is killed or the block raises, `path` stays as it was.
    """
    part = path.with_name(f"{path.name}.part")
    try:
        with room_for(path):
            yield part
            sync(part)
            os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Yields a new folder to fill, which then gets the name `path`, unless another process was faster."""
    part = path.with_name(f".part-{uuid.uuid4().hex}")
    try:
        with room_for(path):
            part.mkdir(parents=True)
            yield part
        with suppress(OSError):  # `path` is there already
            os.replace(part, path)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def write_whole(path: Path, content: str | bytes) -> None:
    with whole_file(path) as part:
        part.write_bytes(content.encode() if isinstance(content, str) else content)


def sha256(*paths: Path) -> str:
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                digest.update(chunk)
    return digest.hexdigest()


def sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def make_folder(folder: Path, flag: str) -> None:
    """Makes a folder and its parents if need be. If it can't be made or written to, a ConfigError names the `flag`."""
    what = "made"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        what = "written to"
        with room_for(folder), TemporaryFile(dir=folder):  # os.access tells root that it may write into /proc
            pass
    except OSError as error:
        raise ConfigError(f"the folder {folder} can't be {what} ({error.strerror}); give another {flag}") from error


def read_object(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise StateError(f"{path} can't be read ({error}); restore the file") from error
    if not isinstance(value, dict):
        raise StateError(f"{path} must hold a JSON object, got {type(value).__name__}; restore the file")
    return value


@contextmanager
def lock_folder(folder: Path, busy: str) -> Iterator[int]:
    """Makes a folder and keeps other processes out of it. Yields the lock, which children may hold until they end.

    The lock of a killed process is free. File systems without locks are not protected.
    """
    make_folder(folder, "--out")
    with room_for(folder):
        descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT)
    try:
        deadline = time.monotonic() + _PATIENCE_S
        while not _locked(descriptor):
            if time.monotonic() > deadline:
                raise ConfigError(busy)
            time.sleep(_POLL_S)
        yield descriptor
    finally:
        os.close(descriptor)


def in_use(folder: Path) -> bool:
    with suppress(OSError), (folder / ".lock").open("r+b") as file:
        return not _locked(file.fileno())
    return False


def _locked(descriptor: int) -> bool:
    """Tries to lock the file. Also true if its file system has no locks."""
    try:
        return lock(descriptor)
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
            raise
        return True
