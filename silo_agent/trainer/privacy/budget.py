"""What may be spent: events added up, what they cost together, and whether more still fits a budget.

There are two numbers. Events that were *fixed in advance*, by a plan made before the first of them was answered, cost
what their composed privacy loss distributions say: whatever order they are asked in, their answers are post-processing of
draws that could have been made beforehand. Where later events were chosen in sight of earlier answers, as tasks are, that
does not hold (tests/unit/test_privacy_filter.py shows an analyst who gains by it), and the privacy filter's larger
number counts. Which of the two decides about a budget is known before its first release: if the filter can pay for
the first plan, the filter decides about everything; if only the smaller number can, nothing outside that plan is ever
paid for. So no choice between the two depends on an answer.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache
from typing import Final, TypeAlias

from wire.privacy.declaration import Unit
from wire.privacy.events import (
    Event,
    Free,
    Gaussian,
    Laplace,
    Pure,
    RandomizedResponse,
    SampledGaussian,
    UnaryResponse,
    Unprotected,
)

Spending: TypeAlias = Counter[Event]
"""How often each event happened; every event counts one answer (one step)."""
_ROUNDING: Final = 1e-9
"""Relative. Noise is calibrated to the whole budget; the last bit of a float must not cost a ballot."""


@dataclass(frozen=True)
class Budget:
    """What silo.yaml allows. None is no limit."""

    task_epsilon: float | None
    """Over all rounds of one task."""
    lifetime_epsilon: float | None
    """Over everything ever released from the data set."""
    delta: float
    unit: Unit
    """Whose exchange for another must not be noticed."""


class Accounting(StrEnum):
    """Which of the two numbers an ε is."""

    FIXED = "fixed in advance"
    """Composed privacy loss distributions of events that a plan made before the first release contains."""
    ADAPTIVE = "privacy filter"
    """Holds however later events were chosen."""

    @property
    def why(self) -> str:
        """For a person: why this number is the right one; no full stop."""
        if self is Accounting.FIXED:
            return "all of it was planned before the first release, so privacy loss distributions are composed"
        return (
            "later releases were chosen in sight of earlier ones, so a privacy filter counts, which is "
            "proved for that and somewhat larger"
        )


@dataclass(frozen=True)
class Total:
    """ε, and which of the two numbers it is."""

    epsilon: float
    accounting: Accounting


@dataclass(frozen=True)
class Account:
    """What was spent of one budget: a task's, or a data set's."""

    spending: Spending = field(default_factory=Counter)
    plan: Spending | None = None
    """What was fixed before the first release; None if nothing was spent, or an earlier version did not say."""
    tasks: frozenset[str] = frozenset()
    """Digests of the tasks that spent it; "" stands for what was written off."""
    rowwise: int = 0
    """Paid releases that protected rows only, where a budget may be kept per patient."""

    def total(self, delta: float) -> Total:
        """What it comes to."""
        if self._fixed:
            return Total(cost(self.spending, delta), Accounting.FIXED)
        return Total(filter_cost(self.spending, delta), Accounting.ADAPTIVE)

    def with_release(self, new: Spending, task: str, plan: Spending | None) -> Account:
        """The account after a release of `task`, which had `plan` if it is the first."""
        kept = plan if not self.spending else self.plan
        return Account(self.spending + new, kept, self.tasks | {task}, self.rowwise)

    def within(self, limit: float, delta: float) -> tuple[bool, Total]:
        """Whether a budget pays for all of it, and the number by which that was decided."""
        most = limit * (1 + _ROUNDING)
        if self.plan is None:
            total = self.total(delta)
        elif filter_cost(self.plan, delta) <= most:
            total = Total(filter_cost(self.spending, delta), Accounting.ADAPTIVE)
        elif self.spending <= self.plan:
            total = Total(cost(self.spending, delta), Accounting.FIXED)
        else:
            total = Total(filter_cost(self.plan | self.spending, delta), Accounting.ADAPTIVE)
        return total.epsilon <= most, total

    @property
    def _fixed(self) -> bool:
        """Within the plan; of an earlier version, which named none, one task's releases are taken for one."""
        return len(self.tasks) <= 1 if self.plan is None else self.spending <= self.plan


@dataclass(frozen=True)
class Exceeded:
    """A budget that does not allow another release. Its sentence is meant for the hospital itself."""

    whose: str
    """`task's` or `lifetime`."""
    budget: float
    delta: float
    unit: Unit
    spent: float
    would_be: float
    accounting: Accounting = Accounting.FIXED
    """Which number `would_be` is."""
    rowwise: int = 0
    """Earlier releases that protected rows only, where the budget is kept per patient."""

    @property
    def sentence(self) -> str:
        """Which budget, what is spent, and what another ballot would make of it; no full stop."""
        budget = f"the {self.whose} budget ε = {self.budget:g} at δ = {self.delta:g}"
        if self.rowwise:
            releases = "release" if self.rowwise == 1 else "releases"
            return (
                f"{budget} is kept per patient, but {self.rowwise} earlier {releases} protected "
                "single rows only"
            )
        if math.isinf(self.spent):
            return f"{budget} is exceeded: something was released without noise before, so ε = ∞ is spent"
        counted = " by the privacy filter" if self.accounting is Accounting.ADAPTIVE else ""
        return (
            f"{budget} would be exceeded: spent {shown(self.spent)}, this ballot would make it "
            f"{shown(self.would_be)}{counted}"
        )


def added_up(events: Iterable[Event]) -> Spending:
    """The events as a multiset; those that differ only in their count are one."""
    spending: Spending = Counter()
    for event in events:
        match event:
            case Free():
                pass
            case Unprotected():
                spending[event] += 1
            case SampledGaussian():
                spending[event.model_copy(update={"steps": 1})] += event.steps
            case Gaussian() | Laplace() | RandomizedResponse() | UnaryResponse() | Pure():
                spending[event.model_copy(update={"count": 1})] += event.count
    return spending


def cost(spending: Spending, delta: float) -> float:
    """ε of all of it together at `delta`, if it was fixed in advance."""
    return _cost(spending, delta, _composed)


def filter_cost(spending: Spending, delta: float) -> float:
    """ε of all of it together at `delta`, however it was chosen."""
    return _cost(spending, delta, _filtered)


def _cost(
    spending: Spending,
    delta: float,
    compose: Callable[[frozenset[tuple[Event, int]], float], float],
) -> float:
    if not spending:
        return 0.0
    if any(isinstance(event, Unprotected) for event in spending):
        return math.inf
    return compose(frozenset(spending.items()), delta)


def exceeded(
    budget: Budget, new: Spending, task: Account, lifetime: Account, digest: str, plan: Spending
) -> Exceeded | None:
    """The budget that `new` on top of what was spent would exceed, if any; what is free always fits.

    `plan` is all that the task of this digest will release; it counts if nothing was spent before.

    A patient's exchange may change several rows, so ε per row says nothing of a patient: a budget per patient
    cannot be kept any more once releases were made that protect rows only. The reverse holds: a row is part of a patient.
    """
    if not new:
        return None
    for whose, limit, before in (
        ("task's", budget.task_epsilon, task),
        ("lifetime", budget.lifetime_epsilon, lifetime),
    ):
        if limit is None:
            continue
        mixed = before.rowwise if budget.unit is Unit.PATIENT else 0
        fits, would_be = before.with_release(new, digest, plan or None).within(limit, budget.delta)
        if mixed or not fits:
            return Exceeded(
                whose,
                limit,
                budget.delta,
                budget.unit,
                before.total(budget.delta).epsilon,
                math.inf if mixed else would_be.epsilon,
                would_be.accounting,
                mixed,
            )
    return None


def payable(
    events: Callable[[int], Sequence[Event]], most: int, limit: float | None, delta: float
) -> int:
    """How many of at most `most` ballots, which together are `events(ballots)`, a budget of one task pays for."""

    def fits(ballots: int) -> bool:
        return limit is None or cost(added_up(events(ballots)), delta) <= limit * (1 + _ROUNDING)

    if fits(most):
        return most
    paid, beyond = 0, most
    while beyond - paid > 1:
        middle = (paid + beyond) // 2
        if fits(middle):
            paid = middle
        else:
            beyond = middle
    return paid


def shown(epsilon: float) -> str:
    """ε for a person: four decimals at most, rounded upwards."""
    if math.isinf(epsilon):
        return "∞"
    # Upwards, but 0.93 is not 0.9301 because its float is a hair above.
    return f"{math.ceil(round(epsilon * 1e4, 5)) / 1e4:.12g}"


def shown_left(epsilon: float) -> str:
    """What is left for a person: rounded the other way than what is spent."""
    return f"{math.floor(round(epsilon * 1e4, 5)) / 1e4:.12g}"


@lru_cache(maxsize=4096)
def _composed(spending: frozenset[tuple[Event, int]], delta: float) -> float:
    # Brings dp-accounting along, a second that a silo without noise need not wait.
    from wire.privacy.accounting import epsilon

    return epsilon((_times(event, count) for event, count in spending), delta)


@lru_cache(maxsize=4096)
def _filtered(spending: frozenset[tuple[Event, int]], delta: float) -> float:
    from wire.privacy.privacy_filter import epsilon

    return epsilon((_times(event, count) for event, count in spending), delta)


def _times(event: Event, count: int) -> Event:
    key = "steps" if isinstance(event, SampledGaussian) else "count"
    return event.model_copy(update={key: count})
