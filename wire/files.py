"""Files that are either whole or not there: written aside, fsynced, renamed."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from wire.errors import DISK_FULL, ConfigurationError, Refusal

_FULL = (errno.ENOSPC, errno.EDQUOT)
_PART = ".part"
_DIGEST = re.compile(r"[0-9a-f]{64}")


def write_atomically(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Replaces `path` with `content`; a crash leaves the old file or the new one, never a part.

    DISK_FULL, and the old file, if there is no room for the new one beside it.
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}{_PART}")
    with room_for(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, path)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


@contextmanager
def room_for(path: Path) -> Iterator[None]:
    """Around writing `path`: a disk without room is DISK_FULL, other errors stay as they are."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise Refusal(DISK_FULL, path=path) from error


def discard_unfinished(folder: Path) -> None:
    """Removes what crashes left of atomic writes at and below `folder`. Call it before writing there."""
    for aside in folder.rglob(f".*{_PART}"):
        aside.unlink(missing_ok=True)


def write_all(descriptor: int, content: bytes) -> None:
    """Writes all of `content` or raises; a disk that fills up writes a part first."""
    while content:
        content = content[os.write(descriptor, content) :]


def sync_folder(folder: Path) -> None:
    """Makes a rename in `folder` survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keeps other processes that lock the same folder out; waits for one that has it."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def held_for_life(path: Path) -> bool:
    """Locks the file at `path`, making it, until this process ends, however it ends; False if another has it.

    The lock is this process's own: what it forked and what outlives it does not hold it.
    """
    try:
        with room_for(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(descriptor)
            raise
    except BlockingIOError:
        return False
    except OSError as error:
        raise ConfigurationError(
            f"{path} cannot be locked: {error.strerror}.",
            "Run this as the user the folder belongs to, on a disk that knows locks.",
        ) from error
    return True


def is_digest(text: str) -> bool:
    """True if `text` is written as `digest_of` writes."""
    return _DIGEST.fullmatch(text) is not None


def digest_of(path: Path) -> str:
    """Lower-case hexadecimal SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
