"""How many rows of U teachers can answer for a budget, and with which noise; decided without any private row.

Replacing one patient changes one teacher, so a row's histogram changes by one in two classes (L2 √2, L1 2) and its
largest count by at most one. All of a plan is charged in advance, whether it is used or not. Where patients are dealt
several times (FedKT's partitions), one patient changes a teacher of every partition, and each partition is charged.

    gaussian    rows answers of argmax(histogram + Gaussian)
    laplace     rows answers of argmax(histogram + Laplace)
    confident   `checks` rows are asked whether largest count + Gaussian reaches the threshold; the first `rows` of
                those that do are answered as with gaussian
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from silo_agent.trainer.privacy.mechanisms.protocol import Scope
from silo_agent.trainer.privacy.settings import TeacherVotesSettings
from wire.errors import ConfigurationError
from wire.privacy.accounting import calibrate, epsilon
from wire.privacy.events import Event, Gaussian, Laplace

USEFUL: Final = 0.2
"""Standard deviation of the noise, in teachers, up to which an answer is worth having: if three teachers in four
agree, and the others too, the noise then overrules them once in 26 times."""
CHECKS: Final = 3
"""`confident`: rows that are looked at for each one that may be answered."""
CHECK_NOISE: Final = 1.5
"""`confident`: noise of a check in that of an answer; a check needs only to sort rows roughly."""
THRESHOLD: Final = 0.6
"""`confident`: share of the teachers that must agree, noise included."""

_PAIR: Final = math.sqrt(2)


@dataclass(frozen=True)
class TeacherPlan:
    """What one paid round does."""

    noise: Literal["gaussian", "laplace", "confident"]
    teachers: int
    rows: int
    """Rows answered at most; 0 if the budget pays for none."""
    checks: int
    """Rows looked at; the same as `rows` unless `confident`."""
    scale: float
    """Noise on every count, in votes: σ, or b for Laplace."""
    check_scale: float = 0.0
    """`confident`: σ on the largest count, in votes."""
    threshold: float = 0.0
    """`confident`: votes."""
    partitions: int = 1
    """Times all this is done, each time with shards dealt anew."""

    @property
    def events(self) -> tuple[Event, ...]:
        """What one paid round costs; nothing if it answers no row."""
        if not self.rows:
            return ()
        answered, checked = self.rows * self.partitions, self.checks * self.partitions
        match self.noise:
            case "gaussian":
                return (Gaussian(sensitivity=_PAIR, scale=self.scale, count=answered),)
            case "laplace":
                return (Laplace(sensitivity=2.0, scale=self.scale, count=answered),)
            case "confident":
                return (
                    Gaussian(sensitivity=1.0, scale=self.check_scale, count=checked),
                    Gaussian(sensitivity=_PAIR, scale=self.scale, count=answered),
                )


def calibrated_teachers(
    settings: TeacherVotesSettings, scope: Scope, partitions: int = 1
) -> TeacherPlan:
    """As many rows as the budget pays for at a useful noise (`USEFUL`), and the least noise for that many.

    With several partitions: as many rows in each, out of the one budget.

    `rows` and `scale` of silo.yaml are kept where given: given rows get the noise they need, useful or not; a given
    scale gets the rows it can have. Without a budget the scale must be given, and all rows are answered.
    """
    size = scope.shape.rows
    if scope.epsilon is None:
        if settings.scale is None:
            raise ConfigurationError(
                "The teachers' votes have neither a budget nor a noise.",
                "Set privacy.epsilon in silo.yaml, or `scale` of the mechanism teacher_votes.",
            )
        rows = min(settings.rows or size, size)
        return _plan(settings, size, rows, settings.scale, partitions)
    budget = _Budget(settings, scope, scope.epsilon, partitions)
    if settings.rows is not None:
        rows = min(settings.rows, size)
        scale = settings.scale or budget.least_scale(rows)
        return _plan(settings, size, rows, scale, partitions)
    scale = settings.scale or useful_scale(settings)
    rows = budget.payable_rows(scale)
    if rows and settings.scale is None:
        scale = min(scale, budget.least_scale(rows))
    return _plan(settings, size, rows, scale, partitions)


def useful_scale(settings: TeacherVotesSettings) -> float:
    """The noise, in votes, up to which an answer is worth having; as a scale of the law that adds it."""
    deviation = USEFUL * settings.teachers
    return deviation / _PAIR if settings.noise == "laplace" else deviation


def whole_task(plan: TeacherPlan, paid_rounds: int) -> Sequence[Event]:
    """The events of all paid rounds."""
    return plan.events * paid_rounds


def paid_rounds(settings: TeacherVotesSettings, scope: Scope) -> int:
    """Rounds in which answers are bought: what silo.yaml says, but no more than the task has."""
    return min(settings.paid_rounds, scope.rounds)


def _plan(
    settings: TeacherVotesSettings, size: int, rows: int, scale: float, partitions: int
) -> TeacherPlan:
    if settings.noise != "confident":
        return TeacherPlan(
            settings.noise, settings.teachers, rows, rows, scale, partitions=partitions
        )
    return TeacherPlan(
        settings.noise,
        settings.teachers,
        rows,
        checks=min(CHECKS * rows, size),
        scale=scale,
        check_scale=CHECK_NOISE * scale,
        threshold=THRESHOLD * settings.teachers,
        partitions=partitions,
    )


@dataclass(frozen=True)
class _Budget:
    """What a task's ε pays for."""

    settings: TeacherVotesSettings
    scope: Scope
    epsilon: float
    partitions: int

    def payable_rows(self, scale: float) -> int:
        """The most rows at a scale, by bisection; 0 if not even one."""
        payable, beyond = 0, 1
        while beyond <= self.scope.shape.rows and self._pays(beyond, scale):
            payable, beyond = beyond, 2 * beyond
        beyond = min(beyond, self.scope.shape.rows + 1)
        while beyond - payable > 1:
            middle = (payable + beyond) // 2
            if self._pays(middle, scale):
                payable = middle
            else:
                beyond = middle
        return payable

    def least_scale(self, rows: int) -> float:
        """The least noise at which that many rows can be answered."""
        enough = 1.0
        while not self._pays(rows, enough):
            enough *= 2
        while self._pays(rows, enough / 2):
            enough /= 2
        found = calibrate(
            lambda scale: self._events(rows, scale),
            self.epsilon,
            self.scope.delta,
            enough / 2,
            enough,
        )
        return found or enough

    def _events(self, rows: int, scale: float) -> Sequence[Event]:
        plan = _plan(self.settings, self.scope.shape.rows, rows, scale, self.partitions)
        return whole_task(plan, paid_rounds(self.settings, self.scope))

    def _pays(self, rows: int, scale: float) -> bool:
        return epsilon(self._events(rows, scale), self.scope.delta) <= self.epsilon
