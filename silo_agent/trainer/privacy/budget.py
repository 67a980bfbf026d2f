"""What may be spent: events added up, what they cost together, and whether more still fits a budget."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
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
        return (
            f"{budget} would be exceeded: spent {shown(self.spent)}, this ballot would make it "
            f"{shown(self.would_be)}"
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
    """ε of all of it together at `delta`."""
    if not spending:
        return 0.0
    if any(isinstance(event, Unprotected) for event in spending):
        return math.inf
    return _composed(frozenset(spending.items()), delta)


def exceeded(
    budget: Budget,
    new: Spending,
    task: Spending,
    lifetime: Spending,
    *,
    rowwise_task: int = 0,
    rowwise_lifetime: int = 0,
) -> Exceeded | None:
    """The budget that `new` on top of what was spent would exceed, if any; what is free always fits.

    A patient's exchange may change several rows, so ε per row says nothing of a patient: a budget per patient
    cannot be kept any more once `rowwise` releases were made. The reverse holds: a row is part of a patient.
    """
    if not new:
        return None
    for whose, limit, before, rowwise in (
        ("task's", budget.task_epsilon, task, rowwise_task),
        ("lifetime", budget.lifetime_epsilon, lifetime, rowwise_lifetime),
    ):
        if limit is None:
            continue
        mixed = rowwise if budget.unit is Unit.PATIENT else 0
        would_be = math.inf if mixed else cost(before + new, budget.delta)
        if would_be > limit * (1 + _ROUNDING):
            spent = cost(before, budget.delta)
            return Exceeded(whose, limit, budget.delta, budget.unit, spent, would_be, mixed)
    return None


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


def _times(event: Event, count: int) -> Event:
    key = "steps" if isinstance(event, SampledGaussian) else "count"
    return event.model_copy(update={key: count})
