"""A learner that fails: the ballot is made without it, and only the hospital hears of it.

A fit or a prediction may raise because of one patient's row. If the silo then did not vote, everyone who watches it
would learn that. So the exception ends here: it is logged, by its type and place, and kept with the task for
`consilium agent tasks` and `consilium agent check`.
"""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import Final, Protocol

import numpy as np
import structlog

from silo_agent.trainer.models.protocol import Labels
from wire.ballot import ABSTAIN

LAST_FAILURE: Final = "last-failure"
"""Under this name the latest failure of a task is kept, in words."""

log = structlog.get_logger()


class Notes(Protocol):
    """Where a task's traces are kept at home."""

    def put(self, name: str, content: bytes) -> None:
        """Keeps `content` under a name."""


def note_failure(what: str, error: Exception, notes: Notes | None = None) -> None:
    """Logs that `what` failed, and keeps it with the task; the exception's text, which may quote a row, is left out."""
    kind, place = type(error).__name__, place_of(error)
    log.error("learner_failed", what=what, kind=kind, place=place)
    if notes is not None:
        notes.put(LAST_FAILURE, f"{what} failed with {kind} at {place}".encode())


def place_of(error: Exception) -> str:
    """File, line and function in which an exception was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames:
        return "an unknown place"
    last = frames[-1]
    return f"{Path(last.filename).name}:{last.lineno} in {last.name}"


def constant_labels(rows: int) -> Labels:
    """(rows,) what a silo without a learner says: it abstains on every row."""
    return np.full(rows, ABSTAIN, dtype=np.int64)


def checked_labels(said: object, rows: int, classes: int) -> Labels:
    """`said` as (rows,) class indices or abstentions; ValueError if it is anything else."""
    labels = np.asarray(said)
    if labels.shape != (rows,) or labels.dtype.kind not in "biuf":
        raise ValueError("a learner says one class index for each row")
    if not np.isin(labels, np.arange(ABSTAIN, classes)).all():
        raise ValueError(f"a learner says class indices in 0..{classes - 1}")
    return labels.astype(np.int64)
