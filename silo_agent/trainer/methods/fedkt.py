"""FedKT inside one silo: partitions of its patients, teachers on their shards, students of the teachers' votes.

The paper sends every student to the server, which counts a silo only where all its students agree, and then once
for each of them. Whether they agree is known at home: the ballot has a label where they do and abstains elsewhere,
and counts as often as there are students. The server's counts are the same and no student leaves.

All that is drawn follows from the silo's seed, so a trainer that starts again makes the same ballot.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from silo_agent.trainer.methods.co_training import Consensus, CoTraining, round_seed
from silo_agent.trainer.methods.keyed_random import keyed_random_words
from silo_agent.trainer.methods.local_learner import LocalLearner
from silo_agent.trainer.methods.protocol import (
    CannotServe,
    Disclosure,
    LearnerFactory,
    Method,
    SiloFacts,
)
from silo_agent.trainer.models.places import places
from silo_agent.trainer.models.protocol import AnyLearner, Labelled, Labels
from silo_agent.trainer.models.teachers import agreed, count_votes, fit_predict
from silo_agent.trainer.privacy.mechanisms.catalogue import build
from silo_agent.trainer.privacy.mechanisms.protocol import Mechanism, Scope
from silo_agent.trainer.privacy.settings import PrivacySettings, TeacherVotesSettings
from wire.ballot import ABSTAIN
from wire.task.definition import TaskDefinition
from wire.task.methods import FedktPolicy

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class FedKT:
    """One round; teachers and students are trained from nothing and none is kept."""

    definition: TaskDefinition
    silo: str

    @property
    def policy(self) -> FedktPolicy:
        """How many partitions and teachers, and where noise is added."""
        if self.definition.fedkt is None:
            raise ValueError("a FedKT task has a section fedkt")
        return self.definition.fedkt

    def require(self, silo: SiloFacts) -> None:
        """Teachers begin with private rows alone."""
        if silo.starts_from_student:
            raise CannotServe(
                "silo.yaml says start_from, and FedKT's teachers begin with private rows alone; "
                "leave it out for this task."
            )

    def learner_builder(self, learner: LearnerFactory) -> Callable[[int], AnyLearner]:
        """Learners of all the task's classes."""
        classes = len(self.definition.labels)
        return lambda seed: learner(classes, seed)

    def mechanism(self, settings: PrivacySettings, scope: Scope) -> Mechanism:
        """The one that silo.yaml names; noisy teachers (level L2) are as many as the task says."""
        named, policy = settings.mechanism, self.policy
        if not isinstance(named, TeacherVotesSettings):
            return build(named, scope)
        from silo_agent.trainer.privacy.mechanisms.teacher_students import TeacherStudents

        return TeacherStudents(named, scope, policy.partitions, policy.teachers)

    def trains_every_round(self, learner: LocalLearner) -> bool:
        """Never: there is one round."""
        return False

    def label_public(
        self, learner: LocalLearner, round_number: int, consensus: Consensus | None
    ) -> Labels:
        """The label all students agree on, -1 where they do not; no round's consensus is asked for."""
        classes = len(self.definition.labels)
        return agreed(student_labels(learner, self.policy, classes))

    def final_learner(
        self, learner: LocalLearner, round_number: int, consensus: Consensus | None
    ) -> AnyLearner:
        """Fitted anew on D and the consensus."""
        return learner.fit_final(round_number, consensus)

    @staticmethod
    def disclosure(settings: PrivacySettings) -> Disclosure:
        """Nothing beside the ballots."""
        return Disclosure()


def student_labels(learner: LocalLearner, policy: FedktPolicy, classes: int) -> Integers:
    """(partitions, rows): what each student says of U. One that had nothing to learn from says -1."""
    return np.stack(
        [_student(learner, policy.teachers, classes, part) for part in range(policy.partitions)]
    )


def draw_shards(patients: Integers, teachers: int, seed: int, partition: int) -> Integers:
    """(n,) the teacher of each patient, drawn by seed and partition for each of them apart from all others."""
    return places(patients, teachers, f"fedkt/deal/{seed}/{partition}")


def majority(counts: Integers, seed: int, partition: int) -> Labels:
    """(rows,) the class most teachers vote for, -1 where none votes; ties by lot, without regard to the class."""
    drawn = keyed_random_words(f"fedkt/ties/{seed}/{partition}", counts.shape)
    best = counts == counts.max(axis=1, keepdims=True)
    winners = np.where(best, drawn, np.uint64(0)).argmax(axis=1)
    labels: Labels = np.where(counts.any(axis=1), winners, ABSTAIN)
    return labels


def _student(learner: LocalLearner, teachers: int, classes: int, partition: int) -> Labels:
    training: CoTraining = learner.training
    public, seed = training.public, training.seed
    shards = draw_shards(learner.patients, teachers, seed, partition)
    own, *others = range(first := round_seed(seed, partition), first + 1 + teachers)
    counts = count_votes(training.build, training.private, shards, public, classes, others)
    labelled = Labelled(public, majority(counts, seed, partition))
    return fit_predict(training.build(own), labelled, public, own, classes)


METHOD: Final[type[Method]] = FedKT
