"""Folders that two accounts share: the set-group-ID bit of a folder says that its group may use what lies in it.

Where agent and trainer are two accounts, whoever lays out the machine (our images, Kubernetes' fsGroup) gives
`exchange` a group of both and sets the bit. Without it a folder is one account's, and nobody else gets anything.
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path


def is_shared(folder: Path) -> bool:
    """True if the group of a folder is meant to use what lies in it."""
    return bool(folder.stat().st_mode & stat.S_ISGID)


def make_private_folder(folder: Path) -> None:
    """Makes a folder for its owner only, unless it is there: then whoever laid it out has decided."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
        # The bit is inherited, and a group that owns the place need not be the group that was meant.
        folder.chmod(0o700)


def make_folder(folder: Path) -> None:
    """Makes a folder unless it is there: as shared as the one it lies in."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
        shared = is_shared(folder.parent)
        folder.chmod(stat.S_IMODE(folder.parent.stat().st_mode) & 0o3770 if shared else 0o700)


def let_group_read(file: Path, folder: Path) -> None:
    """Sets a file that belongs into `folder` readable for the group if the folder is shared, else for its owner only."""
    file.chmod(0o640 if is_shared(folder) else 0o600)


def let_group_connect(socket: Path) -> None:
    """The same for a Unix socket, where connecting is writing."""
    os.chmod(socket, 0o660 if is_shared(socket.parent) else 0o600)
