"""What a whole task costs by the mechanism's own word: its offers, added up as the ledger would."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from silo_agent.trainer.methods.protocol import Method
from silo_agent.trainer.privacy.budget import payable
from silo_agent.trainer.privacy.mechanisms.catalogue import build
from silo_agent.trainer.privacy.mechanisms.protocol import Scope, Sensitivity
from silo_agent.trainer.privacy.settings import (
    MechanismSettings,
    NoneSettings,
    PrivacySettings,
    PrivateLabellerSettings,
    RandomizedResponseSettings,
    TeacherVotesSettings,
    XorSettings,
    has_own_noise,
)
from silo_agent.trainer.privacy.silo_without_data import silo_without_data
from wire.ballot import BallotShape, Encoding
from wire.errors import ConfigurationError
from wire.privacy.accounting import epsilon
from wire.privacy.declaration import Unit

_MANY: Final = 10_000
"""Patients assumed where their number is not known: enough for every mechanism to be built."""


@dataclass(frozen=True)
class TaskFacts:
    """What is known of a task, or assumed of one."""

    shape: BallotShape
    rounds: int
    name: str = ""
    """Empty if it is only assumed."""
    method: Method | None = None
    """None if it is only assumed; its ballots are then the mechanism's alone."""

    @property
    def called(self) -> str:
        """How to speak of it."""
        shape = self.shape
        numbers = f"{shape.rows} public rows, {shape.classes} classes, at most {self.rounds} rounds"
        return f"task {self.name} ({numbers})" if self.name else f"a task with {numbers}"


@dataclass(frozen=True)
class Costs:
    """What the mechanism itself says of a task (`costs_of`)."""

    epsilon: float | None
    """All ballots together, were there no budget; None if it is known only when the silo votes."""
    paid_rounds: int
    """Rounds in which a ballot is bought."""
    payable: int | None = None
    """How many of them the budget of one task pays for, if that is known."""
    misfit: str = ""
    """Why the mechanism cannot serve the task; empty if it can."""


def encoding_for(settings: MechanismSettings) -> Encoding:
    """The encoding of ballots that serves a mechanism best."""
    match settings:
        case XorSettings() | RandomizedResponseSettings():
            return Encoding.ONE_HOT
        case PrivateLabellerSettings():
            return Encoding.SCORED
        case NoneSettings() | TeacherVotesSettings():
            return Encoding.INDEX


def noise_is_open(settings: PrivacySettings) -> bool:
    """True if neither the mechanism's own settings nor a budget for the task say how much noise to add."""
    none = isinstance(settings.mechanism, NoneSettings)
    return not none and settings.epsilon is None and not has_own_noise(settings.mechanism)


def costs_of(settings: PrivacySettings, patient_column: str | None, task: TaskFacts) -> Costs:
    """What a task would cost with these settings, as far as that can be said without the private data."""
    if isinstance(settings.mechanism, NoneSettings) or noise_is_open(settings):
        return Costs(None, task.rounds)
    scope = Scope(
        shape=task.shape,
        rounds=task.rounds,
        epsilon=settings.epsilon,
        delta=settings.delta,
        unit=Unit.ROW if patient_column is None else Unit.PATIENT,
        units=_MANY,
    )
    try:
        mechanism = (
            build(settings.mechanism, scope)
            if task.method is None
            else task.method.mechanism(settings, scope)
        )
    except ConfigurationError as error:
        return Costs(None, task.rounds, misfit=error.sentence)
    misfit = mechanism.misfit()
    if misfit or _found_in_the_data(settings.mechanism):
        return Costs(None, mechanism.paid_rounds, misfit=misfit)
    offer = mechanism.offer(silo_without_data(task.shape))
    paid = mechanism.paid_rounds if offer.events else 1
    spent = epsilon(offer.whole_task(paid), settings.delta)
    return Costs(spent, paid, payable(offer.whole_task, paid, settings.epsilon, settings.delta))


def _found_in_the_data(settings: MechanismSettings) -> bool:
    """True if what a ballot costs is estimated from the private rows, in the round itself."""
    source = settings.sensitivity.source if isinstance(settings, XorSettings) else None
    return source is Sensitivity.EMPIRICAL
