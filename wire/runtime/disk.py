"""Checks that folders are writable and have enough free space."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from wire.runtime.findings import Finding, failed, ok, warning
from wire.runtime.terminal import size

FreeBytes = Callable[[Path], int]

# The state of a round is small, but a database or log must not meet a full disk.
_LEAST_FREE = 64 << 20
_COMFORTABLE = 1 << 30


def free_bytes(folder: Path) -> int:
    """Bytes this user may still write on the disk of `folder`."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def check_disk(
    name: str, folders: Sequence[Path], needed: int, free: FreeBytes = free_bytes
) -> Finding:
    """Checks `folders`, or their nearest existing parents; `needed` is in bytes still to be downloaded."""
    present = list(dict.fromkeys(_present(folder) for folder in folders))
    for folder in present:
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(b"\0")
        except OSError as error:
            return failed(
                name,
                f"{folder} cannot be written to: {error.strerror}.",
                "Give the folder to the user Consilium runs as, or free some space.",
            )
    room, folder = min((free(folder), folder) for folder in present)
    wanted = f" and {size(needed)} of public sets are still to come" if needed else ""
    sentence = f"{size(room)} free at {folder}{wanted}."
    advice = "Free some space, or move the folder with --home."
    if room < needed + _LEAST_FREE:
        return failed(name, f"Only {sentence}", advice)
    if room < needed + _COMFORTABLE:
        return warning(name, f"Only {sentence}", advice)
    return ok(name, sentence)


def _present(folder: Path) -> Path:
    """The folder, or the nearest one above it that exists."""
    folder = folder.absolute()
    return next(path for path in (folder, *folder.parents) if path.is_dir())
