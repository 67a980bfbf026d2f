"""Which ballots are taken: checks of what a silo announces, and then of the bits themselves. Pure."""

from __future__ import annotations

import numpy as np

from coordinator.store.records import TaskRecord
from wire.ballot import BallotShape, check, class_planes, digest
from wire.errors import (
    BALLOT_DIGEST,
    BALLOT_LABEL_SPACE,
    PRIVACY_TOO_WEAK,
    TASK_CHANGED,
    Refusal,
)
from wire.privacy.declaration import Declaration


def announced_shape(
    task: TaskRecord, task_digest: str, encoding: int, size_bytes: int
) -> BallotShape:
    """The only shape this task's ballots have; refuses an announcement of another shape or another definition."""
    if task_digest != task.digest:
        raise Refusal(TASK_CHANGED, task=task.name)
    shape = task.definition.shape
    shape.expect_encoding(encoding)
    shape.expect_length(size_bytes)
    return shape


def require_privacy(task: TaskRecord, declared: Declaration) -> None:
    """PRIVACY_TOO_WEAK if a silo declares less than the task demands."""
    unmet = task.definition.privacy.unmet_by(declared)
    if unmet:
        raise Refusal(PRIVACY_TOO_WEAK, task=task.name, why="; ".join(unmet))


def check_ballot(task: TaskRecord, silo: str, payload: bytes, announced_digest: str) -> None:
    """Refuses bits that are no ballot of this task, are not those announced, or name classes `silo` does not know."""
    shape = task.definition.shape
    check(payload, shape)
    if digest(payload) != announced_digest:
        raise Refusal(BALLOT_DIGEST)
    unknown = np.ones(shape.classes, dtype=np.bool_)
    unknown[list(task.definition.label_space(silo))] = False
    if unknown.any() and class_planes(payload, shape)[unknown].any():
        raise Refusal(BALLOT_LABEL_SPACE, name=silo, task=task.name)
