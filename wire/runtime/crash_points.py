"""A test hook: named points at which a process kills itself with SIGKILL, so that tests can crash it exactly there.

Nothing happens unless the environment names points: `CONSILIUM_CRASH_AT=closing-begun`, or several separated by
commas. With `CONSILIUM_CRASH_ONCE=FOLDER` a process crashes at each of them once, in the order in which they are
named, across restarts: the folder has a file for every crash so far.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Final

VARIABLE: Final = "CONSILIUM_CRASH_AT"
ONCE: Final = "CONSILIUM_CRASH_ONCE"

COORDINATOR_POINTS: Final = (
    # `…-ing` is right before a transaction is committed, `…-ed` right after.
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

BUDGET_POINTS: Final = (
    # The trainer's, on the way that only a ballot takes which the budget no longer pays for.
    "ballot-overspent",
    "abstention-kept",
)


def crash_point(name: str) -> None:
    """Kills this process, without any clean-up, if the environment names this point."""
    wanted = os.environ.get(VARIABLE, "").split(",")
    if name in wanted and _due(name, wanted):
        os.kill(os.getpid(), signal.SIGKILL)


def _due(name: str, wanted: list[str]) -> bool:
    """True if `name` is the next point to crash at; marks it as done."""
    if ONCE not in os.environ:
        return True
    folder = Path(os.environ[ONCE])
    if next((one for one in wanted if not (folder / one).exists()), None) != name:
        return False
    (folder / name).touch()
    return True
