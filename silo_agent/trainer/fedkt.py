"""FedKT inside one silo: partitions of its patients, teachers on their shards, students of the teachers' votes.

The paper sends every student to the server, which counts a silo only where all its students agree, and then once
for each of them. Whether they agree is known at home: the ballot has a label where they do and abstains elsewhere,
and counts as often as there are students. The server's counts are the same and no student leaves.

All that is drawn follows from the silo's seed, so a trainer that starts again makes the same ballot.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from silo_agent.models.protocol import Labelled, Labels
from silo_agent.models.teachers import agreed, count_votes, taught
from silo_agent.trainer.fedct import CoTraining, round_seed
from silo_agent.trainer.lots import lots
from wire.ballot import ABSTAIN
from wire.methods import FedktPolicy

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class School:
    """What a task and a silo settle before anything is trained."""

    policy: FedktPolicy
    classes: int
    units: int
    """Patients (or rows) the silo has, whether or not one of them is left out to see what changes."""


def consistent_labels(training: CoTraining, patients: Integers, school: School) -> Labels:
    """(rows,) the label all students agree on, -1 where they do not."""
    return agreed(student_labels(training, patients, school))


def student_labels(training: CoTraining, patients: Integers, school: School) -> Integers:
    """(partitions, rows): what each student says of U. One that had nothing to learn from says -1."""
    partitions = range(school.policy.partitions)
    return np.stack([_student(training, patients, school, partition) for partition in partitions])


def dealt(units: int, teachers: int, seed: int, partition: int) -> Integers:
    """(units,) the teacher of each patient; the numbers of patients differ by one at most."""
    shards = np.empty(units, dtype=np.int64)
    order = np.argsort(lots(f"fedkt/deal/{seed}/{partition}", (units,)), kind="stable")
    shards[order] = np.arange(units) % teachers
    return shards


def majority(counts: Integers, seed: int, partition: int) -> Labels:
    """(rows,) the class most teachers vote for, -1 where none votes; ties by lot, without regard to the class."""
    drawn = lots(f"fedkt/ties/{seed}/{partition}", counts.shape)
    best = counts == counts.max(axis=1, keepdims=True)
    winners = np.where(best, drawn, np.uint64(0)).argmax(axis=1)
    labels: Labels = np.where(counts.any(axis=1), winners, ABSTAIN)
    return labels


def _student(training: CoTraining, patients: Integers, school: School, partition: int) -> Labels:
    public, seed, teachers = training.public, training.seed, school.policy.teachers
    shards = dealt(school.units, teachers, seed, partition)[patients]
    own, *others = range(first := round_seed(seed, partition), first + 1 + teachers)
    counts = count_votes(training.build, training.private, shards, public, school.classes, others)
    lesson = Labelled(public, majority(counts, seed, partition))
    return taught(training.build(own), lesson, public, own)
