"""A test hook: places at which a process dies as if killed with -9, so that tests can kill it there exactly.

Nothing happens unless the environment names places: `CONSILIUM_CRASH_AT=closing-begun`, or several behind
commas. With `CONSILIUM_CRASH_ONCE=FOLDER` a process dies at each of them once, in the order in which they are
named, however often it is started again: the folder keeps a file for every death.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Final

VARIABLE: Final = "CONSILIUM_CRASH_AT"
ONCE: Final = "CONSILIUM_CRASH_ONCE"

COORDINATOR_POINTS: Final = (
    # A name in -ing is the last moment before a transaction is committed, its past the first one after.
    "member-joining",
    "member-joined",
    "certificate-renewing",
    "certificate-renewed",
    "public-set-received",
    "public-set-placed",
    "public-set-publishing",
    "public-set-published",
    "task-creating",
    "task-created",
    "task-starting",
    "task-started",
    "ballot-accepting",
    "ballot-accepted",
    "closing-decided",
    "closing-begun",
    "consensus-formed",
    "consensus-publishing",
    "consensus-published",
)
AGENT_POINTS: Final = (
    "join-asking",
    "join-answered",
    "join-stored",
    "renewal-asking",
    "renewal-answered",
    "renewal-stored",
    "public-set-fetched",
    "consensus-fetched",
    "ballot-handed-in",
    "ballot-recorded",
    "ballot-answered",
    "receipt-recorded",
)
TRAINER_POINTS: Final = (
    "vote-asked",
    "learner-trained",
    "learner-kept",
    "ballot-made",
    "ballot-kept",
    "ballot-paying",
    "ballot-paid",
    "ballot-handed-over",
    "model-trained",
    "model-kept",
)


def crash_point(name: str) -> None:
    """Dies here and now, without any clean-up, if the environment asks for `name`."""
    wanted = os.environ.get(VARIABLE, "").split(",")
    if name in wanted and _due(name, wanted):
        os.kill(os.getpid(), signal.SIGKILL)


def _due(name: str, wanted: list[str]) -> bool:
    """True if it is `name`'s turn; notes down that it was."""
    if ONCE not in os.environ:
        return True
    folder = Path(os.environ[ONCE])
    if next((one for one in wanted if not (folder / one).exists()), None) != name:
        return False
    (folder / name).touch()
    return True
