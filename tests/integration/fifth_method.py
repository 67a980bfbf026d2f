"""A method that no paper has: every silo votes for its own commonest label, whatever the row.

`test_fifth_method.py` puts this file, as it is, beside the papers' methods.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import numpy as np

from silo_agent.trainer.methods.co_training import Consensus
from silo_agent.trainer.methods.local_learner import LocalLearner
from silo_agent.trainer.methods.protocol import Disclosure, LearnerFactory, Method, SiloFacts
from silo_agent.trainer.models.protocol import AnyLearner, Labels
from silo_agent.trainer.privacy.mechanisms.catalogue import build
from silo_agent.trainer.privacy.mechanisms.protocol import Mechanism, Scope
from silo_agent.trainer.privacy.settings import PrivacySettings
from wire.task.definition import TaskDefinition


@dataclass(frozen=True)
class CommonestLabel:
    """Trains nothing to vote; the model at home learns from the consensus as usual."""

    definition: TaskDefinition
    silo: str

    def require(self, silo: SiloFacts) -> None:
        """Serves every silo."""

    def learner_builder(self, learner: LearnerFactory) -> Callable[[int], AnyLearner]:
        """Learners of all classes."""
        return lambda seed: learner(len(self.definition.labels), seed)

    def mechanism(self, settings: PrivacySettings, scope: Scope) -> Mechanism:
        """The one that silo.yaml names."""
        return build(settings.mechanism, scope)

    def trains_every_round(self, learner: LocalLearner) -> bool:
        """Never."""
        return False

    def label_public(
        self, learner: LocalLearner, round_number: int, consensus: Consensus | None
    ) -> Labels:
        """The commonest label, for all rows."""
        commonest = np.bincount(learner.training.private.labels).argmax()
        return np.full(self.definition.rows, commonest, dtype=np.int64)

    def final_learner(
        self, learner: LocalLearner, round_number: int, consensus: Consensus | None
    ) -> AnyLearner:
        """Fitted on D and the consensus."""
        return learner.fit_final(round_number, consensus)

    @staticmethod
    def disclosure(settings: PrivacySettings) -> Disclosure:
        """Nothing beside the ballots."""
        return Disclosure()


METHOD: Final[type[Method]] = CommonestLabel
