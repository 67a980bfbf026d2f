"""FedCT tasks in which every silo has the same learner, mechanism and budget: what the privacy experiments compare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from experiments.federation import (
    FederationResult,
    define_task,
    make_silos,
    run_federation,
    silo_names,
)
from experiments.seeded import SeededBits
from silo_agent.trainer.models.catalogue import LearnerSpec
from silo_agent.trainer.models.protocol import Features, Labelled
from silo_agent.trainer.privacy.settings import MechanismSettings, PrivacySettings
from silo_agent.trainer.settings import TrainingSettings
from wire.ballot import Encoding
from wire.task.consensus_policy import RuleName

_NOISE_STRIDE = 1_000_003
"""Apart from each other, the seeds of two runs' noise are never those of two silos of one run."""


@dataclass(frozen=True)
class PrivateTask:
    """What the silos agree on, and what each of them does about privacy."""

    mechanism: MechanismSettings
    encoding: Encoding
    epsilon: float | None
    """Each silo's budget for the whole run; None if the mechanism has none."""
    delta: float
    rounds: int
    learner: LearnerSpec
    local_steps: int = 50

    def run(
        self,
        private: Sequence[Labelled],
        public: Features,
        classes: int,
        seed: int,
        *,
        noise_seed: int | None = None,
        home_models: bool = True,
    ) -> FederationResult:
        """Runs the task over silo-001 …; one that its budget or its rows do not let take part is absent.

        `seed` decides what learners draw, `noise_seed` (by default the same) what mechanisms draw.
        """
        names = silo_names(len(private))
        privacy = PrivacySettings(mechanism=self.mechanism, epsilon=self.epsilon, delta=self.delta)
        settings = TrainingSettings(model=self.learner, seed=seed, privacy=privacy)
        noise = _NOISE_STRIDE * (seed if noise_seed is None else noise_seed)
        bits = {name: SeededBits(noise + index) for index, name in enumerate(names)}
        scored = self.encoding is Encoding.SCORED
        definition = define_task(
            public,
            classes,
            names,
            encoding=self.encoding,
            consensus={"rule": RuleName.CERTAINTY_WEIGHTED if scored else RuleName.MAJORITY},
            local_steps=self.local_steps,
            rounds={"max_rounds": self.rounds},
        )
        return run_federation(
            definition,
            make_silos(names, private, lambda _: settings),
            public,
            bits=bits.__getitem__,
            home_models=home_models,
            absent_allowed=True,
        )
