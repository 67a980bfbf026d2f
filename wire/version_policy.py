"""Which releases work together: a coordinator serves agents of its own release and of the one before.

A release is what the first two numbers of a version say; X.0 serves every release of X-1. The coordinator is
upgraded first, agents follow before it is upgraded again.
"""

from __future__ import annotations

import re

from wire.errors import VERSION_TOO_OLD, Refusal

Release = tuple[int, int]

VERSION_KEY = "consilium-version"
"""Initial metadata of a watch: the coordinator's version."""

_VERSION = re.compile(r"(\d{1,9})\.(\d{1,9})(?!\d)", re.ASCII)


def release_of(version: str) -> Release | None:
    """The release a version belongs to; None if it does not say."""
    found = _VERSION.match(version)
    return (int(found[1]), int(found[2])) if found else None


def require_served(silo: str, agent: str, coordinator: str) -> None:
    """VERSION_TOO_OLD if a coordinator of one version no longer serves agents of the other.

    Who does not say its version is not judged: the rule serves the honest.
    """
    theirs, ours = release_of(agent), release_of(coordinator)
    if theirs is None or ours is None:
        return
    major, minor = ours
    oldest = (major, minor - 1) if minor else (major - 1, 0)
    if theirs < oldest:
        told = {"agent": _shown(theirs), "coordinator": _shown(ours), "oldest": _shown(oldest)}
        raise Refusal(VERSION_TOO_OLD, name=silo, **told)


def advice(agent: str, coordinator: str) -> tuple[str, str]:
    """What an agent's operator should know of the two versions, and do; nothing if they are of one release."""
    ours, theirs = release_of(agent), release_of(coordinator)
    if ours is None or theirs is None or ours == theirs:
        return "", ""
    both = f"This agent is of release {_shown(ours)}, the coordinator of {_shown(theirs)}"
    if ours > theirs:
        return f"{both}, which may not know all that is asked of it.", (
            "Ask the admin to upgrade the coordinator; it goes first."
        )
    return f"{both}, whose next release may not serve it.", "Upgrade agent and trainer soon."


def _shown(release: Release) -> str:
    return f"{release[0]}.{release[1]}"
