"""Teacher votes (PATE inside a silo): patients are dealt to disjoint shards, one teacher each, and their vote is noisy.

Why it is private. Shards hold whole patients and are dealt by a permutation drawn in secret, anew for every vote, from
all n! of them alike; n is public. Whatever the order of the file, each deal of the others is then as likely on a
neighbour, with the patient who came in the shard of the one who went. (Were shards a hash of the id, that patient
would land in another shard and move two teachers.) A patient is in one shard and moves one teacher, so
a row's histogram changes by one in two classes and its largest count by at
most one (`teacher_plan` has what that costs). A teacher that casts no vote, since its learner cannot be trained on
its shard, changes less. Counts are multiples of a grain of 1/1024 vote and so is the noise, which therefore is that
of the ideal mechanism, rounded. Which rows are asked is drawn, not chosen; nothing but the answers leaves.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

from silo_agent.trainer.models.protocol import Features, Labels
from silo_agent.trainer.models.teachers import count_votes, round_robin
from silo_agent.trainer.privacy.mechanisms.protocol import (
    LabelsWanted,
    Offer,
    Scope,
    Sensitivity,
    SiloRound,
    Vote,
)
from silo_agent.trainer.privacy.mechanisms.teacher_plan import (
    TeacherPlan,
    calibrated_teachers,
    paid_rounds,
    whole_task,
)
from silo_agent.trainer.privacy.settings import TeacherVotesSettings
from wire.ballot import ABSTAIN
from wire.privacy.accounting import epsilon
from wire.privacy.declaration import Declaration, MechanismName
from wire.privacy.noise import gaussian, laplace, permutation
from wire.privacy.randomness import Bits

GRAINS: Final = 1024
"""Grains per vote."""

Integers = npt.NDArray[np.int64]


class TeacherVotes:
    """Answers as many rows as the budget pays for and abstains on all others."""

    name = MechanismName.TEACHER_VOTES
    labels_wanted = LabelsWanted.NEVER

    def __init__(self, settings: TeacherVotesSettings, scope: Scope) -> None:
        self._scope = scope
        self.paid_rounds = paid_rounds(settings, scope)
        """As silo.yaml says; each asks rows of its own, and the budget is shared among them."""
        self.plan = calibrated_teachers(settings, scope, partitions=1)

    def misfit(self) -> str:
        """Too few patients for the teachers, or too small a budget for a single useful answer."""
        return plan_misfit(self.plan, self._scope, "have more teachers, set `rows`")

    def offer(self, silo: SiloRound) -> Offer:
        """The cost of one paid round: all its checks and answers, whether they are used or not."""
        return plan_offer(self.plan, self._scope, self.paid_rounds)

    def vote(self, silo: SiloRound, bits: Bits) -> Vote:
        """Teachers trained anew on shards dealt anew; nothing of an earlier round is needed or used."""
        return Vote(labels=teacher_answers(silo, self.plan, self._scope, 0, bits))


def plan_misfit(plan: TeacherPlan, scope: Scope, remedy: str) -> str:
    """Why a plan answers nothing, and the `remedy`; empty if it answers some rows."""
    if scope.units < plan.teachers:
        return f"There are {scope.units} {scope.unit}s, too few for {plan.teachers} teachers with shards of their own."
    if not plan.rows:
        return (
            f"A budget of ε = {scope.epsilon:g} at δ = {scope.delta:g} pays for no answer of "
            f"{plan.teachers} teachers with noise of {plan.scale:g} votes or less; "
            f"{remedy}, or choose the private_labeller."
        )
    return ""


def plan_offer(
    plan: TeacherPlan,
    scope: Scope,
    paid_rounds: int,
    more_parameters: Mapping[str, object] | None = None,
) -> Offer:
    """What one paid round by this plan costs."""
    declaration = Declaration(
        mechanism=MechanismName.TEACHER_VOTES,
        epsilon=epsilon(whole_task(plan, paid_rounds), scope.delta),
        delta=scope.delta,
        unit=scope.unit,
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
    parameters |= more_parameters or {}
    return Offer(plan.events, declaration, Sensitivity.BY_CONSTRUCTION, parameters)


def teacher_answers(
    silo: SiloRound, plan: TeacherPlan, scope: Scope, partition: int, bits: Bits
) -> Labels:
    """(rows,) the noisy answers of one partition's teachers, -1 where they were not asked."""
    teachers, rows = plan.teachers, scope.shape.rows
    asked = permutation(rows, bits)[: plan.checks]
    # All patients are dealt, also those without a usable row: how many share a shard depends on nobody's rows.
    _, numbers = np.unique(silo.patients, return_inverse=True)
    shards = draw_shards(scope.units, teachers, bits)[numbers]
    counts = histogram(silo, shards, teachers, silo.public[asked], partition * teachers)
    labels = np.full(rows, ABSTAIN, dtype=np.int64)
    if silo.known is None:
        labels[asked] = answers(counts, plan, bits)
        return labels
    # No answer is lost to noise on classes the silo does not know; leaving counts out costs nothing.
    found = answers(counts[:, silo.known], plan, bits)
    labels[asked] = np.where(found == ABSTAIN, ABSTAIN, np.asarray(silo.known)[found])
    return labels


def draw_shards(units: int, teachers: int, bits: Bits) -> Integers:
    """(units,) the teacher of each, 0..teachers−1; the numbers of units differ by one at most."""
    return round_robin(permutation(units, bits), teachers)


def histogram(
    silo: SiloRound, shards: Integers, teachers: int, rows: Features, first_seed: int = 0
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
    tie_breakers = bits.words(totals.size).reshape(size)
    best = totals == totals.max(axis=1, keepdims=True)
    labels[chosen] = np.where(best, tie_breakers, np.uint64(0)).argmax(axis=1)
    return labels
