"""Teacher votes (PATE inside a silo): patients are dealt to disjoint shards, one teacher each, and their vote is noisy.

Why it is private. Shards are dealt by a permutation that looks at no row, and hold whole patients. A patient is in
one shard and moves one teacher, so a row's histogram changes by one in two classes and its largest count by at
most one (`teacher_plan` has what that costs). A teacher that casts no vote, since its learner cannot be trained on
its shard, changes less. Counts are multiples of a grain of 1/1024 vote and so is the noise, which therefore is that
of the ideal mechanism, rounded. Which rows are asked is drawn, not chosen; nothing but the answers leaves.

In a FedKT task (level L2) patients are dealt several times over, as the task says. A patient is then in one shard of
every partition, and what the partitions answer is paid for one after the other. Each partition's answers teach a
student, who labels all of U: that is post-processing and free. The ballot is what all students agree on. It is kept
together with the plan it was made by, and offers speak of that plan from then on, whatever silo.yaml says by then.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Final

import numpy as np
import numpy.typing as npt

from silo_agent.models.protocol import Features, Labelled, Labels
from silo_agent.models.teachers import agreed, count_votes, taught
from silo_agent.privacy.mechanisms.protocol import (
    Keepsakes,
    Offer,
    PrivateSide,
    Scope,
    Sensitivity,
    Vote,
)
from silo_agent.privacy.mechanisms.teacher_plan import (
    TeacherPlan,
    calibrated_teachers,
    paid_rounds,
    whole_task,
)
from silo_agent.privacy.settings import TeacherVotesSettings
from wire.ballot import ABSTAIN
from wire.methods import FedktPolicy
from wire.privacy.accounting import epsilon
from wire.privacy.declaration import Declaration, MechanismName
from wire.privacy.noise import gaussian, laplace, permutation
from wire.privacy.randomness import Bits

GRAINS: Final = 1024
"""Grains per vote."""
_KEPT: Final = "teachers-students"

Integers = npt.NDArray[np.int64]


class TeacherVotes:
    """Answers as many rows as the budget pays for and abstains on all others.

    With a FedKT task's policy, its partitions and teachers hold instead of silo.yaml's, and students label the rest.
    """

    name = MechanismName.TEACHER_VOTES

    def __init__(
        self, settings: TeacherVotesSettings, scope: Scope, fedkt: FedktPolicy | None = None
    ) -> None:
        self._scope = scope
        self._fedkt = fedkt
        if fedkt is not None:
            settings = settings.model_copy(update={"teachers": fedkt.teachers})
        self._paid_rounds = paid_rounds(settings, scope)
        self.plan = calibrated_teachers(settings, scope, fedkt.partitions if fedkt else 1)

    @property
    def paid_rounds(self) -> int:
        """As silo.yaml says; each asks rows of its own, and the budget is shared among them."""
        return self._paid_rounds

    def misfit(self) -> str:
        """Too few patients for the teachers, or too small a budget for a single useful answer."""
        unit = self._scope.unit
        if self._scope.units < self.plan.teachers:
            return f"There are {self._scope.units} {unit}s, too few for {self.plan.teachers} teachers with shards of their own."
        if not self.plan.rows:
            more = "set `rows`" if self._fedkt else "have more teachers, set `rows`"
            return (
                f"A budget of ε = {self._scope.epsilon:g} at δ = {self._scope.delta:g} pays for no answer of "
                f"{self.plan.teachers} teachers with noise of {self.plan.scale:g} votes or less; "
                f"{more}, or choose the private_labeller."
            )
        return ""

    def offer(self, silo: PrivateSide) -> Offer:
        """The cost of one paid round: all its checks and answers, whether they are used or not."""
        kept = None if self._fedkt is None else _kept(silo.kept)
        plan = self.plan if kept is None else kept[0]
        declaration = Declaration(
            mechanism=self.name,
            epsilon=epsilon(whole_task(plan, self._paid_rounds), self._scope.delta),
            delta=self._scope.delta,
            unit=self._scope.unit,
        )
        parameters: dict[str, object] = {
            "noise": plan.noise,
            "teachers": plan.teachers,
            "rows": plan.rows,
            "scale": plan.scale,
        }
        if plan.noise == "confident":
            parameters |= {
                "checks": plan.checks,
                "check_scale": plan.check_scale,
                "threshold": plan.threshold,
            }
        if self._fedkt is not None:
            parameters |= {"partitions": plan.partitions, "teachers_set_by": "task"}
        return Offer(plan.events, declaration, Sensitivity.BY_CONSTRUCTION, parameters)

    def vote(self, silo: PrivateSide, bits: Bits) -> Vote:
        """Teachers trained anew on shards dealt anew; nothing of an earlier round is needed or used."""
        if self._fedkt is None:
            return Vote(labels=self._answers(silo, 0, bits))
        kept = _kept(silo.kept)
        if kept is not None:
            return Vote(labels=kept[1])
        labels = agreed(
            np.stack([self._student(silo, part, bits) for part in range(self.plan.partitions)])
        )
        _keep(silo.kept, self.plan, labels)
        return Vote(labels=labels)

    def _answers(self, silo: PrivateSide, partition: int, bits: Bits) -> Labels:
        """(rows,) the noisy answers of one partition's teachers, -1 where they were not asked."""
        teachers = self.plan.teachers
        asked = permutation(self._scope.shape.rows, bits)[: self.plan.checks]
        shards = dealt(int(silo.patients.max()) + 1, teachers, bits)[silo.patients]
        counts = histogram(silo, shards, teachers, silo.public[asked], partition * teachers)
        labels = np.full(self._scope.shape.rows, ABSTAIN, dtype=np.int64)
        if silo.known is None:
            labels[asked] = answers(counts, self.plan, bits)
            return labels
        # No answer is lost to noise on classes the silo does not know; leaving counts out costs nothing.
        found = answers(counts[:, silo.known], self.plan, bits)
        labels[asked] = np.where(found == ABSTAIN, ABSTAIN, np.asarray(silo.known)[found])
        return labels

    def _student(self, silo: PrivateSide, partition: int, bits: Bits) -> Labels:
        """(rows,) what one who learned a partition's answers says of all of U."""
        lesson = Labelled(silo.public, self._answers(silo, partition, bits))
        return taught(silo.build(partition), lesson, silo.public, partition)


def dealt(units: int, teachers: int, bits: Bits) -> Integers:
    """(units,) the teacher of each, 0..teachers−1; the numbers of units differ by one at most."""
    shards = np.empty(units, dtype=np.int64)
    shards[permutation(units, bits)] = np.arange(units) % teachers
    return shards


def histogram(
    silo: PrivateSide, shards: Integers, teachers: int, rows: Features, first_seed: int = 0
) -> Integers:
    """(rows, classes): how many teachers, each trained on its shard's rows alone, vote for a class."""
    seeds = range(first_seed, first_seed + teachers)
    return count_votes(silo.build, silo.private, shards, rows, silo.classes, seeds)


def answers(counts: Integers, plan: TeacherPlan, bits: Bits) -> Integers:
    """(rows,) the noisy winners of (rows, classes) counts, -1 where the plan has none; ties are drawn."""
    labels = np.full(len(counts), ABSTAIN, dtype=np.int64)
    chosen = np.arange(len(counts))
    if plan.noise == "confident":
        largest = counts.max(axis=1) * GRAINS
        noisy = largest + gaussian(plan.check_scale * GRAINS, len(counts), bits)
        # The first ones in the order asked, which was drawn: later ones are not looked at any more.
        chosen = np.flatnonzero(noisy >= plan.threshold * GRAINS)[: plan.rows]
    law = laplace if plan.noise == "laplace" else gaussian
    size = (len(chosen), counts.shape[1])
    totals = counts[chosen] * GRAINS + law(plan.scale * GRAINS, size, bits)
    lots = bits.words(totals.size).reshape(size)
    best = totals == totals.max(axis=1, keepdims=True)
    labels[chosen] = np.where(best, lots, np.uint64(0)).argmax(axis=1)
    return labels


def _keep(kept: Keepsakes, plan: TeacherPlan, labels: Labels) -> None:
    kept.put(_KEPT, json.dumps({"plan": asdict(plan), "labels": labels.tolist()}).encode())


def _kept(kept: Keepsakes) -> tuple[TeacherPlan, Labels] | None:
    content = kept.get(_KEPT)
    if content is None:
        return None
    held = json.loads(content)
    return TeacherPlan(**held["plan"]), np.array(held["labels"], dtype=np.int64)
