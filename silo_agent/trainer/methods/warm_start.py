"""Warm start: before the first consensus, pseudo-labels and weights come from a student of an earlier task.

A student is trained on published labels alone (`consilium student train`), so using it costs no privacy budget. P is
the student's prediction on U; a network of the same architecture starts from the student's weights.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from silo_agent.trainer.data.features import Encoder
from silo_agent.trainer.data.home_model import load_model
from silo_agent.trainer.models.protocol import AnyLearner, Labels
from wire.ballot import ABSTAIN
from wire.public_content import open_array, open_table
from wire.schema import SetKind
from wire.task.definition import TaskDefinition


class WarmStartMismatch(Exception):
    """The student that `start_from` names does not fit the task; the message says why."""


@runtime_checkable
class WarmStartable(Protocol):
    """A learner that can copy the weights of another one."""

    def copy_weights_from(self, other: object, /) -> bool:
        """Copies the weights of `other`; returns False and changes nothing if its architecture differs."""


@dataclass(frozen=True, eq=False)
class WarmStart:
    """A student's labels of U and, where usable, its learner."""

    labels: Labels = field(repr=False)
    """(rows,) the student's labels of U; -1 for classes the silo does not know."""
    learner: AnyLearner | None = field(default=None, repr=False)
    """The student's learner; None if it reads rows otherwise than the silo's own."""

    def apply_to(self, learner: AnyLearner) -> AnyLearner:
        """`learner` with the student's weights if both are networks of one architecture; else unchanged."""
        if self.learner is not None and isinstance(learner, WarmStartable):
            learner.copy_weights_from(self.learner)
        return learner


def load_warm_start(
    path: Path,
    definition: TaskDefinition,
    encoder: Encoder,
    known: tuple[int, ...],
    *,
    raw: bool,
) -> WarmStart:
    """The warm start that silo.yaml names; raises WarmStartMismatch if it does not fit the task.

    `raw` is False where the silo's learner sees an extractor's vectors instead of rows.
    """
    student = load_model(path)
    if student.labels != definition.labels:
        raise WarmStartMismatch(
            f"The student {path.name} that start_from names was taught other labels than the task's."
        )
    if student.encoder.schema != encoder.schema:
        raise WarmStartMismatch(
            f"The student {path.name} that start_from names reads rows of another form than the task's public set has."
        )
    array = encoder.schema.kind is SetKind.ARRAY
    labels = student.indices(open_array(encoder.path) if array else open_table(encoder.path))
    alike = raw and student.extractor is None and student.encoder.names == encoder.names
    return WarmStart(
        np.where(np.isin(labels, known), labels, ABSTAIN), student.learner if alike else None
    )
