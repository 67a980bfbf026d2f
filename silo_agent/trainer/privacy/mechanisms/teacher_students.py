"""Teacher votes in several partitions, and students of the answers: FedKT's level L2.

Patients are dealt several times over. A patient is then in one shard of every partition, and what the partitions
answer is paid for one after the other. Each partition's answers teach a student, who labels all of U: that is
post-processing and free. The ballot is what all students agree on. It is kept together with the plan it was made
by, and offers speak of that plan from then on, whatever silo.yaml says by then.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Final

import numpy as np

from silo_agent.trainer.models.protocol import Labelled, Labels
from silo_agent.trainer.models.teachers import agreed, fit_predict
from silo_agent.trainer.privacy.mechanisms.protocol import (
    KeptFiles,
    LabelsWanted,
    Offer,
    Scope,
    SiloRound,
    Vote,
)
from silo_agent.trainer.privacy.mechanisms.teacher_plan import (
    TeacherPlan,
    calibrated_teachers,
    paid_rounds,
)
from silo_agent.trainer.privacy.mechanisms.teacher_votes import (
    plan_misfit,
    plan_offer,
    teacher_answers,
)
from silo_agent.trainer.privacy.settings import TeacherVotesSettings
from wire.privacy.declaration import MechanismName
from wire.privacy.randomness import Bits

_KEPT: Final = "teachers-students"


class TeacherStudents:
    """As many partitions and teachers as the task says, whatever silo.yaml does."""

    name = MechanismName.TEACHER_VOTES
    labels_wanted = LabelsWanted.NEVER

    def __init__(
        self, settings: TeacherVotesSettings, scope: Scope, partitions: int, teachers: int
    ) -> None:
        settings = settings.model_copy(update={"teachers": teachers})
        self._scope = scope
        self.paid_rounds = paid_rounds(settings, scope)
        """As silo.yaml says, and one in a task of one round."""
        self.plan = calibrated_teachers(settings, scope, partitions)

    def misfit(self) -> str:
        """Too few patients for the teachers, or too small a budget for a single useful answer."""
        return plan_misfit(self.plan, self._scope, "set `rows`")

    def offer(self, silo: SiloRound) -> Offer:
        """The cost of all partitions' answers, by the plan the kept ballot was made by if there is one."""
        kept = _kept(silo.kept)
        plan = self.plan if kept is None else kept[0]
        more = {"partitions": plan.partitions, "teachers_set_by": "task"}
        return plan_offer(plan, self._scope, self.paid_rounds, more)

    def vote(self, silo: SiloRound, bits: Bits) -> Vote:
        """What all students agree on; made once."""
        kept = _kept(silo.kept)
        if kept is not None:
            return Vote(labels=kept[1])
        students = [self._student(silo, part, bits) for part in range(self.plan.partitions)]
        labels = agreed(np.stack(students))
        _keep(silo.kept, self.plan, labels)
        return Vote(labels=labels)

    def _student(self, silo: SiloRound, partition: int, bits: Bits) -> Labels:
        """(rows,) what one who learned a partition's answers says of all of U."""
        answers = teacher_answers(silo, self.plan, self._scope, partition, bits)
        labelled = Labelled(silo.public, answers)
        return fit_predict(silo.build(partition), labelled, silo.public, partition, silo.classes)


def _keep(kept: KeptFiles, plan: TeacherPlan, labels: Labels) -> None:
    kept.put(_KEPT, json.dumps({"plan": asdict(plan), "labels": labels.tolist()}).encode())


def _kept(kept: KeptFiles) -> tuple[TeacherPlan, Labels] | None:
    content = kept.get(_KEPT)
    if content is None:
        return None
    held = json.loads(content)
    return TeacherPlan(**held["plan"]), np.array(held["labels"], dtype=np.int64)
