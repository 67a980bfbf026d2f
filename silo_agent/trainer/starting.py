"""A starting point: a student of an earlier consensus stands in for the first one.

Such a student comes from published labels alone (`consilium student train`), so beginning with it costs nothing.
Until there is a consensus, P is what the student says of U. A network of the student's own form begins with the
student's weights instead of random ones.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

import numpy as np

from silo_agent.models.protocol import AnyLearner, Labels
from silo_agent.trainer.features import Encoder
from silo_agent.trainer.home_model import load_model
from wire.ballot import ABSTAIN
from wire.methods import Method
from wire.public_content import open_array, open_table
from wire.schema import SetKind
from wire.task import TaskDefinition


@runtime_checkable
class Beginner(Protocol):
    """A learner that can take over what another one has learned."""

    def begin_like(self, other: object, /) -> bool:
        """Takes over what `other` has learned; False, and nothing, if it is of another form."""


@dataclass(frozen=True, eq=False)
class Start:
    """What a silo begins with."""

    labels: Labels = field(repr=False)
    """(rows,) the student's labels of U; -1 for classes the silo does not know."""
    learner: AnyLearner | None = field(default=None, repr=False)
    """The student's learner; None if it reads rows otherwise than the silo's own."""

    def begin(self, learner: AnyLearner) -> AnyLearner:
        """`learner` with the student's weights, if both are networks of one form; else as it is."""
        if self.learner is not None and isinstance(learner, Beginner):
            learner.begin_like(self.learner)
        return learner


def load_start(
    path: Path,
    definition: TaskDefinition,
    encoder: Encoder,
    known: tuple[int, ...],
    *,
    raw: bool,
) -> Start | str:
    """The start that silo.yaml names, or the sentence that says why it is none for this task.

    `raw` is False where the silo's learner sees an extractor's vectors instead of rows.
    """
    if definition.method is Method.FEDKT:
        return "silo.yaml says start_from, and FedKT's teachers begin with private rows alone; leave it out for this task."
    student = load_model(path)
    if student.labels != definition.labels:
        return f"The student {path.name} that start_from names was taught other labels than the task's."
    if student.encoder.schema != encoder.schema:
        return f"The student {path.name} that start_from names reads rows of another form than the task's public set has."
    array = encoder.schema.kind is SetKind.ARRAY
    labels = student.indices(open_array(encoder.path) if array else open_table(encoder.path))
    alike = raw and student.extractor is None and student.encoder.names == encoder.names
    return Start(
        np.where(np.isin(labels, known), labels, ABSTAIN), student.learner if alike else None
    )
