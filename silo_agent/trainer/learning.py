"""A silo's own learner over the rounds of one task: what it says of U, and what becomes of it at home."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from silo_agent.models.afresh import fitted
from silo_agent.models.protocol import AnyLearner, IterativeLearner, Labels
from silo_agent.trainer.cross_fitting import Apart, Folds, fit_apart, folds_of
from silo_agent.trainer.fedct import Consensus, CoTraining, union
from silo_agent.trainer.fedkt import School, consistent_labels
from silo_agent.trainer.starting import Start
from silo_agent.trainer.task_folder import Folder
from silo_agent.trainer.weighing import fit_at_home
from wire.ballot import unpack
from wire.crash_points import crash_point
from wire.task import TaskDefinition


@dataclass(frozen=True, eq=False)
class Learning:
    """Trains as the task's method says. `consensus` is the latest published one, packed in the index encoding."""

    definition: TaskDefinition
    folder: Folder
    training: CoTraining
    patients: NDArray[np.int64] = field(repr=False)
    consensus_share: float | None = None
    """How much of the consensus the final model learns from; None lets validation decide."""
    start: Start | None = None
    """What stands in for the first consensus."""
    silo: str = ""
    """The silo's name: what it draws is then its own, also where all silo.yaml have the same seed."""

    @cached_property
    def continues(self) -> bool:
        """True if the learner goes on from round to round; FedKT's teachers and students never do."""
        return self.definition.fedkt is None and self._iterative

    def advance(self, number: int, consensus: bytes | None) -> AnyLearner | Apart:
        """What the silo has learned by round `number`; trained once, also by a trainer that was killed."""
        held: AnyLearner | Apart | None = self.folder.learner(number)
        if held is not None:
            return held
        learned = self._learned(self.training, number, consensus, self._previous(number))
        self._keep(number, learned)
        return learned

    def labels(self, number: int, consensus: bytes | None) -> Labels:
        """(rows,) what the silo says of U in round `number`, -1 where it says nothing."""
        if self._school is not None:
            return consistent_labels(self.training, self.patients, self._school)
        return self._said(self.advance(number, consensus))

    def labels_without(self, unit: int, number: int, consensus: bytes | None) -> Labels:
        """The same, had one patient not been there and the learner not begun before."""
        kept = self.patients != unit
        training = replace(self.training, private=self.training.private[kept])
        if self._school is not None:
            return consistent_labels(training, self.patients[kept], self._school)
        return self._said(self._learned(training, number, consensus, None))

    def home_learner(self, number: int, consensus: bytes | None) -> AnyLearner:
        """The model this silo keeps, trained in the place of round `number`."""
        labels, training = self._labels(consensus), self.training
        if self.continues:
            held = _whole(self.folder.learner(number))
            if held is None:
                held = training.fit(number, labels, _whole(self._previous(number)))
                self._keep(number, held)
            return held
        if self._iterative:
            together = union(training.private, training.pseudo_labelled(labels))
            return fitted(training.build(training.seed), together, training.seed)
        return fit_at_home(training, self.patients, number, labels, self.consensus_share)

    def _learned(
        self,
        training: CoTraining,
        number: int,
        consensus: bytes | None,
        previous: AnyLearner | Apart | None,
    ) -> AnyLearner | Apart:
        labels, count = self._labels(consensus), self.definition.cross_fit
        if count == 1:
            return training.fit(number, labels, _whole(previous))
        return fit_apart(training, number, labels, previous, self._folds, count)

    def _keep(self, number: int, learned: AnyLearner | Apart) -> None:
        # A trainer killed after the state was kept, but before the ballot was, must not train twice.
        crash_point("learner-trained")
        if self.continues:
            self.folder.keep_learner(number, learned)
            crash_point("learner-kept")

    def _said(self, learned: AnyLearner | Apart) -> Labels:
        public = self.training.public
        if isinstance(learned, Apart):
            return learned.predict(public, self._folds)
        return np.asarray(learned.predict(public))

    def _previous(self, number: int) -> AnyLearner | Apart | None:
        held: AnyLearner | Apart | None = self.folder.latest_learner(number)
        if held is not None or self.start is None or not self.continues:
            return held
        seed, count = self.training.seed, self.definition.cross_fit
        begun = self.start.begin(self.training.build(seed))
        if count == 1:
            return begun
        # The student has seen every row's label; those who must not have begin with nothing.
        return Apart(begun, tuple(self.training.build(seed) for _ in range(count)))

    def _labels(self, consensus: bytes | None) -> Consensus | None:
        if consensus is not None:
            return unpack(consensus, self.definition.shape.as_index())
        return None if self.start is None else self.start.labels

    @cached_property
    def _iterative(self) -> bool:
        return isinstance(self.training.build(self.training.seed), IterativeLearner)

    @cached_property
    def _school(self) -> School | None:
        if self.definition.fedkt is None:
            return None
        units = int(self.patients.max()) + 1
        return School(self.definition.fedkt, len(self.definition.labels), units)

    @cached_property
    def _folds(self) -> Folds:
        task = self.definition
        return folds_of(
            task.rows, task.cross_fit, f"{task.digest}/{self.silo}/{self.training.seed}"
        )


def _whole(learned: AnyLearner | Apart | None) -> AnyLearner | None:
    return learned.whole if isinstance(learned, Apart) else learned
