"""A simulated federation on synthetic data: silos, public set, test rows, and the accuracy of local training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from silo_agent.trainer.methods.co_training import Consensus, CoTraining
from silo_agent.trainer.methods.final_fit import best_share, fit_at_home
from silo_agent.trainer.models.protocol import AnyLearner, Labelled, Labels
from silo_agent.trainer.planner.problem import SyntheticProblem, learner, right
from silo_agent.trainer.privacy.mechanisms.protocol import SiloRound
from silo_agent.trainer.privacy.silo_without_data import InMemoryFiles

FRESH: Final = 4000
"""Rows nobody has seen, on which models are judged."""


@dataclass(frozen=True, eq=False)
class SimulatedFederation:
    """One federation, drawn independently of all others."""

    classes: int
    silos: tuple[CoTraining, ...]
    truth: Labels
    """Of the public rows."""
    fresh: Labelled
    first: tuple[Labels, ...]
    """How each silo, knowing nothing of the others, labels the public rows."""
    alone: float
    """How often the silos' models, on average, are right on the fresh rows."""
    pooled: float
    """How often one model of all silos' rows is."""

    @classmethod
    def draw(
        cls, problem: SyntheticProblem, silos: int, rows: int, public_rows: int, seed: int
    ) -> SimulatedFederation:
        """Draws a federation; deterministic in its arguments."""
        rng = np.random.default_rng(seed)
        public, fresh = problem.draw(public_rows, rng), problem.draw(FRESH, rng)
        width = public.features.shape[1]
        trainings = tuple(
            CoTraining(
                private=problem.draw(rows, rng),
                public=public.features,
                build=lambda seed: learner(problem.classes, width, seed),
                local_steps=1,
                seed=0,
            )
            for _ in range(silos)
        )
        models = [training.fit(1, None, None) for training in trainings]
        pooled = learner(problem.classes, width).fit(
            np.concatenate([training.private.features for training in trainings]),
            np.concatenate([training.private.labels for training in trainings]),
        )
        return cls(
            classes=problem.classes,
            silos=trainings,
            truth=public.labels,
            fresh=fresh,
            first=tuple(model.predict(public.features) for model in models),
            alone=_mean_right(models, fresh),
            pooled=_mean_right([pooled], fresh),
        )

    def silo_round(
        self, silo: int, round_number: int, labels: Labels | None, kept: InMemoryFiles
    ) -> SiloRound:
        """What a mechanism sees of a silo; `labels` where it wants them."""
        training = self.silos[silo]

        def never(_: int) -> Labels:
            raise AssertionError("a sensitivity is given to the planner, not estimated by it")

        return SiloRound(
            private=training.private,
            patients=np.arange(len(training.private)),
            public=training.public,
            classes=self.classes,
            round_number=round_number,
            labels=labels,
            relabel_without=never,
            build=training.build,
            kept=kept,
        )

    def labels_of(self, silo: int, round_number: int, consensus: Consensus | None) -> Labels:
        """How a silo labels the public rows in the round after `consensus`; trains unless it is the first."""
        if consensus is None:
            return self.first[silo]
        training = self.silos[silo]
        return training.fit(round_number, consensus, None).predict(training.public)

    def at_home(self, consensus: Consensus) -> float:
        """How often the silos' models are right, on average, once trained on D and what serves them of P."""
        rows = [np.arange(len(training.private)) for training in self.silos]
        # They are alike: what share serves the first serves all, and trying shares takes most of the time.
        share = best_share(self.silos[0], rows[0], 1, consensus)
        models = [
            fit_at_home(training, own, 1, consensus, share)
            for training, own in zip(self.silos, rows, strict=True)
        ]
        return _mean_right(models, self.fresh)


def _mean_right(models: Sequence[AnyLearner], fresh: Labelled) -> float:
    return float(np.mean([right(model.predict(fresh.features), fresh.labels) for model in models]))
