"""CoFED: silos know different classes; each learns and votes for its own, and is sent only those of the consensus."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from silo_agent.trainer.methods.fedct import FedCT
from silo_agent.trainer.methods.label_space_learners import restricted_to
from silo_agent.trainer.methods.protocol import LearnerFactory, Method
from silo_agent.trainer.models.protocol import AnyLearner


class CoFED(FedCT):
    """FedCT whose learners are built for the classes the silo knows."""

    def learner_builder(self, learner: LearnerFactory) -> Callable[[int], AnyLearner]:
        """Learners of the silo's own classes that answer with the task's indices."""
        known = self.definition.label_space(self.silo)
        return restricted_to(known, learner, len(self.definition.labels))


METHOD: Final[type[Method]] = CoFED
