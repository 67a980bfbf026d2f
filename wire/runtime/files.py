"""Atomic writes (temporary file, fsync, rename), file locks and digests."""

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


def write_atomically(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Replaces `path` with `content`; a crash leaves the old file or the new one, never a part.

    Refusal DISK_FULL, and the old file stays, if there is no space for the new one.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}{_PART}")
    with full_disk_as_refusal(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync_folder(path.parent)


@contextmanager
def full_disk_as_refusal(path: Path) -> Iterator[None]:
    """Around writing `path`: turns ENOSPC and EDQUOT into Refusal DISK_FULL; other errors pass."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL:
            raise
        raise Refusal(DISK_FULL, path=path) from error


def discard_unfinished(folder: Path) -> None:
    """Removes temporary files that crashes left below `folder`. No other process may be writing there."""
    for temporary in folder.rglob(f".*{_PART}"):
        temporary.unlink(missing_ok=True)


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
    """Holds an exclusive lock on `folder` between processes; waits for one that holds it."""
    folder.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def lock_until_exit(path: Path, note: str = "") -> bool:
    """Creates and locks the file at `path` until this process ends, however it ends; False if another has it.

    `note` is what `lock_holder` gives while it is locked. It is a POSIX record lock: child processes do not inherit it.
    """
    try:
        with full_disk_as_refusal(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with full_disk_as_refusal(path):
                os.ftruncate(descriptor, 0)
                write_all(descriptor, note.encode())
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


def lock_holder(path: Path) -> str | None:
    """The note of the other process that holds the lock at `path`; None if none does.

    Must not be called by the process that holds it: closing the file would end the lock.
    """
    try:
        with path.open("rb") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return file.read().decode()
    except FileNotFoundError:
        pass
    return None


def is_digest(text: str) -> bool:
    """True if `text` is written as `digest_of` writes."""
    return _DIGEST.fullmatch(text) is not None


def digest_of(path: Path) -> str:
    """Lower-case hexadecimal SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
