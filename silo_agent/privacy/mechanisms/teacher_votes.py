"""Teacher votes (PATE inside a silo): patients are dealt to disjoint shards, one teacher each, and their vote is noisy.

Why it is private. Shards are dealt by a permutation that looks at no row, and hold whole patients. A patient is in
one shard and moves one teacher, so a row's histogram changes by one in two classes and its largest count by at
most one (`teacher_plan` has what that costs). A teacher that casts no vote, since its learner cannot be trained on
its shard, changes less. Counts are multiples of a grain of 1/1024 vote and so is the noise, which therefore is that
of the ideal mechanism, rounded. Which rows are asked is drawn, not chosen; nothing but the answers leaves.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from silo_agent.models.protocol import Features, IterativeLearner, Labelled
from silo_agent.privacy.mechanisms.protocol import Offer, PrivateSide, Scope, Sensitivity, Vote
from silo_agent.privacy.mechanisms.teacher_plan import (
    TeacherPlan,
    calibrated_teachers,
    paid_rounds,
    whole_task,
)
from silo_agent.privacy.settings import TeacherVotesSettings
from wire.ballot import ABSTAIN
from wire.privacy.accounting import epsilon
from wire.privacy.declaration import Declaration, MechanismName
from wire.privacy.noise import gaussian, laplace, permutation
from wire.privacy.randomness import Bits

GRAINS: Final = 1024
"""Grains per vote."""
TEACHER_STEPS: Final = 200
"""Minibatch steps of a teacher whose learner continues; shards are small and a fixed number reveals nothing."""

Integers = npt.NDArray[np.int64]


class TeacherVotes:
    """Answers as many rows as the budget pays for and abstains on all others."""

    name = MechanismName.TEACHER_VOTES

    def __init__(self, settings: TeacherVotesSettings, scope: Scope) -> None:
        self._scope = scope
        self._paid_rounds = paid_rounds(settings, scope)
        self.plan = calibrated_teachers(settings, scope)

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
            return (
                f"A budget of ε = {self._scope.epsilon:g} at δ = {self._scope.delta:g} pays for no answer of "
                f"{self.plan.teachers} teachers with noise of {self.plan.scale:g} votes or less; "
                "have more teachers, set `rows`, or choose the private_labeller."
            )
        return ""

    def offer(self, silo: PrivateSide) -> Offer:
        """The cost of one paid round: all its checks and answers, whether they are used or not."""
        plan = self.plan
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
        return Offer(plan.events, declaration, Sensitivity.BY_CONSTRUCTION, parameters)

    def vote(self, silo: PrivateSide, bits: Bits) -> Vote:
        """Teachers trained anew on shards dealt anew; nothing of an earlier round is needed or used."""
        asked = permutation(self._scope.shape.rows, bits)[: self.plan.checks]
        shards = dealt(int(silo.patients.max()) + 1, self.plan.teachers, bits)[silo.patients]
        counts = histogram(silo, shards, self.plan.teachers, silo.public[asked])
        labels = np.full(self._scope.shape.rows, ABSTAIN, dtype=np.int64)
        labels[asked] = answers(counts, self.plan, bits)
        return Vote(labels=labels)


def dealt(units: int, teachers: int, bits: Bits) -> Integers:
    """(units,) the teacher of each, 0..teachers−1; the numbers of units differ by one at most."""
    shards = np.empty(units, dtype=np.int64)
    shards[permutation(units, bits)] = np.arange(units) % teachers
    return shards


def histogram(silo: PrivateSide, shards: Integers, teachers: int, rows: Features) -> Integers:
    """(rows, classes): how many teachers, each trained on its shard's rows alone, vote for a class."""
    counts = np.zeros((len(rows), silo.classes), dtype=np.int64)
    for teacher in range(teachers):
        mine = shards == teacher
        shard = Labelled(silo.private.features[mine], silo.private.labels[mine])
        votes = _votes(silo, shard, teacher, rows)
        cast = np.flatnonzero((votes >= 0) & (votes < silo.classes))
        counts[cast, votes[cast]] += 1
    return counts


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


def _votes(silo: PrivateSide, shard: Labelled, teacher: int, rows: Features) -> Integers:
    """(rows,) one teacher's labels; -1 where its learner cannot learn from so few rows."""
    learner = silo.build(teacher)
    try:
        if isinstance(learner, IterativeLearner):
            learner.advance(shard, None, TEACHER_STEPS, teacher)
        else:
            learner.fit(shard.features, shard.labels)
        return np.asarray(learner.predict(rows), dtype=np.int64)
    except ValueError:
        # Letting it out would tell the network side that something is special about a patient.
        return np.full(len(rows), ABSTAIN, dtype=np.int64)
