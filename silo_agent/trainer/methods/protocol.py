"""What a method is: how it labels U, what it releases, what that costs, and what becomes of a consensus.

A method is an object built for one task at one silo; its class is `METHOD` in the module of its name (`registry`).
It keeps no state of its own: whatever must survive a crash lies in the task's folder, behind `LocalLearner`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from silo_agent.trainer.methods.co_training import Consensus
from silo_agent.trainer.methods.local_learner import LocalLearner
from silo_agent.trainer.models.protocol import AnyLearner, Labels
from silo_agent.trainer.privacy.mechanisms.protocol import Mechanism, Scope
from silo_agent.trainer.privacy.settings import PrivacySettings
from wire.task.definition import TaskDefinition

LearnerFactory: TypeAlias = Callable[[int, int], AnyLearner]
"""An untrained learner for a number of classes and a seed."""


class CannotServe(Exception):
    """The silo cannot take part in the task; `sentence` says why, to a person at the hospital."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.sentence = sentence


@dataclass(frozen=True)
class SiloFacts:
    """What a method may ask about a silo before anything is trained."""

    has_extractor: bool
    """The task's extractor is here and has been applied to the rows."""
    starts_from_student: bool
    """silo.yaml names a student to start from."""


@dataclass(frozen=True)
class Disclosure:
    """What a method releases beside the mechanism's ballots, in sentences for an officer."""

    how: tuple[str, ...] = ()
    """How it is made and what it costs."""
    leaves: tuple[str, ...] = ()
    """What leaves the hospital."""


class Method(Protocol):
    """One paper's method, for one task at one silo."""

    def __init__(self, definition: TaskDefinition, silo: str) -> None:
        """For the silo of this name, which decides what it knows and what it draws."""
        ...

    def require(self, silo: SiloFacts) -> None:
        """Raises `CannotServe` if the silo lacks what the method needs."""
        ...

    def learner_builder(self, build: LearnerFactory) -> Callable[[int], AnyLearner]:
        """Builds untrained learners, by seed, that answer with the task's class indices."""
        ...

    def mechanism(self, settings: PrivacySettings, scope: Scope) -> Mechanism:
        """The mechanism of silo.yaml as this method releases by it; it prices every ballot.

        Raises ConfigurationError if budget and settings leave the noise open.
        """
        ...

    def trains_every_round(self, learner: LocalLearner) -> bool:
        """True if the learner must take its steps in each round, even where the ballot is made without it."""
        ...

    def label_public(
        self, learner: LocalLearner, round_number: int, consensus: Consensus | None
    ) -> Labels:
        """(rows,) trains for the round and labels U; -1 abstains. The same labels after a crash."""
        ...

    def final_learner(
        self, learner: LocalLearner, round_number: int, consensus: Consensus | None
    ) -> AnyLearner:
        """The model the hospital keeps, trained on D and the last consensus in the place of `round_number`."""
        ...

    @staticmethod
    def disclosure(settings: PrivacySettings) -> Disclosure:
        """What it releases beside the mechanism's ballots; nothing for most."""
        ...
