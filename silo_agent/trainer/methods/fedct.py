"""FedCT: the learner is trained on D and the latest consensus, and votes on U, round after round.

With `cross_fit: k` each of k parts of U is labelled by a learner that has not seen that part's consensus.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from silo_agent.trainer.methods.co_training import Consensus, CoTraining
from silo_agent.trainer.methods.cross_fitting import (
    FoldLearners,
    Folds,
    fit_fold_learners,
    folds_of,
)
from silo_agent.trainer.methods.local_learner import LocalLearner
from silo_agent.trainer.methods.protocol import Disclosure, LearnerFactory, Method, SiloFacts
from silo_agent.trainer.methods.warm_start import WarmStart
from silo_agent.trainer.models.protocol import AnyLearner, Labels
from silo_agent.trainer.privacy.mechanisms.catalogue import build
from silo_agent.trainer.privacy.mechanisms.protocol import Mechanism, Scope
from silo_agent.trainer.privacy.settings import PrivacySettings
from wire.task.definition import TaskDefinition


@dataclass(frozen=True)
class FedCT:
    """Federated co-training; other methods that train in rounds build on it."""

    definition: TaskDefinition
    silo: str
    """The silo's name: what it draws is then its own, also where all silo.yaml have the same seed."""

    def require(self, silo: SiloFacts) -> None:
        """Serves every silo."""

    def learner_builder(self, learner: LearnerFactory) -> Callable[[int], AnyLearner]:
        """Learners of all the task's classes."""
        classes = len(self.definition.labels)
        return lambda seed: learner(classes, seed)

    def mechanism(self, settings: PrivacySettings, scope: Scope) -> Mechanism:
        """The one that silo.yaml names."""
        return build(settings.mechanism, scope)

    def trains_every_round(self, learner: LocalLearner) -> bool:
        """True of a learner that continues."""
        return learner.iterative

    def label_public(
        self, learner: LocalLearner, round_number: int, consensus: Consensus | None
    ) -> Labels:
        """What the learner of this round says of U."""
        learned = learner.train(
            round_number,
            consensus,
            self._fit(learner),
            lambda warm_start: self._initial_state(learner, warm_start),
        )
        public = learner.training.public
        if isinstance(learned, FoldLearners):
            return learned.predict(public, self._folds(learner))
        return np.asarray(learned.predict(public))

    def final_learner(
        self, learner: LocalLearner, round_number: int, consensus: Consensus | None
    ) -> AnyLearner:
        """One that continues takes its last steps; any other is fitted anew."""
        if not learner.iterative:
            return learner.fit_final(round_number, consensus)
        learned: AnyLearner = _whole(
            learner.train(
                round_number,
                consensus,
                _fit_whole,
                lambda warm_start: self._initial_state(learner, warm_start),
            )
        )
        return learned

    @staticmethod
    def disclosure(settings: PrivacySettings) -> Disclosure:
        """Nothing beside the ballots."""
        return Disclosure()

    def _fit(self, learner: LocalLearner) -> Callable[..., Any]:
        count = self.definition.cross_fit
        if count == 1:
            return _fit_whole

        def fit_apart(
            training: CoTraining, round_number: int, consensus: Consensus | None, previous: Any
        ) -> FoldLearners:
            folds = self._folds(learner)
            return fit_fold_learners(training, round_number, consensus, previous, folds, count)

        return fit_apart

    def _initial_state(
        self, learner: LocalLearner, warm_start: WarmStart
    ) -> AnyLearner | FoldLearners:
        """The state before round 1 of a learner that is warm-started."""
        training, count = learner.training, self.definition.cross_fit
        begun = warm_start.apply_to(training.build(training.seed))
        if count == 1:
            return begun
        # The student has seen every row's label; those who must not have begin with nothing.
        return FoldLearners(begun, tuple(training.build(training.seed) for _ in range(count)))

    def _folds(self, learner: LocalLearner) -> Folds:
        task = self.definition
        return folds_of(
            task.rows, task.cross_fit, f"{task.digest}/{self.silo}/{learner.training.seed}"
        )


def _fit_whole(
    training: CoTraining, round_number: int, consensus: Consensus | None, previous: Any
) -> AnyLearner:
    return training.fit(round_number, consensus, _whole(previous) if previous is not None else None)


def _whole(learned: Any) -> Any:
    return learned.whole if isinstance(learned, FoldLearners) else learned


METHOD: Final[type[Method]] = FedCT
