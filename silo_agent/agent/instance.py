"""Identifies the running agent, one per folder and machine, so that a silo started twice is noticed."""

from __future__ import annotations

import hashlib
import secrets
import socket
from pathlib import Path

from wire.errors import ConfigurationError
from wire.runtime.files import lock_until_exit, write_atomically


class InstanceLock:
    """Held until the process ends; ConfigurationError if another agent holds it."""

    def __init__(self, folder: Path) -> None:
        if not lock_until_exit(folder / "lock"):
            raise ConfigurationError(
                f"Another agent is already running with {folder.parent}.",
                "Stop it first, or give this one its own --home.",
            )
        self.instance = _identifier(folder / "instance")


def _identifier(path: Path) -> str:
    """The same after a restart on this machine, so that the agent resumes its own lease.

    The host's name and the folder's path are part of it: a copy of the folder, here or elsewhere, is another
    instance.
    """
    if not path.exists():
        write_atomically(path, secrets.token_hex(16).encode(), 0o600)
    kept = path.read_text(encoding="ascii")
    return hashlib.sha256(f"{kept}@{socket.gethostname()}:{path.resolve()}".encode()).hexdigest()
