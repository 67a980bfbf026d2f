"""The operating system account that runs a command, from the kernel, not from environment variables."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

_NOT_LOGGED_IN = 2**32 - 1


def os_account() -> str:
    """The account's name, and who logged in if that was someone else (`root, logged in as anna`)."""
    account, login = os.getuid(), _login()
    if login in (None, account):
        return _name(account)
    return f"{_name(account)}, logged in as {_name(login)}"


def _login() -> int | None:
    """The user id set at login, which sudo and su do not change; None if there was no login."""
    try:
        login = int(Path("/proc/self/loginuid").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
    return None if login == _NOT_LOGGED_IN else login


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
