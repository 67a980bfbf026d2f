"""FedCT as a task, and who does without; every learner and every vote is the product's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from experiments.data import Split, pooled
from experiments.federation import (
    FederationResult,
    define_task,
    make_silos,
    run_federation,
    silo_names,
)
from experiments.papers.experiment import Timed
from experiments.scores import Predictor, Scores, score, train_alone
from silo_agent.trainer.models.catalogue import LearnerSpec
from silo_agent.trainer.models.extractors.protocol import Extractor
from silo_agent.trainer.models.protocol import Labels
from silo_agent.trainer.privacy.settings import PrivacySettings
from silo_agent.trainer.settings import TrainingSettings

EXTRACTOR_DIGEST = "00" * 32
"""What a task calls an extractor that is handed to the silos directly."""


@dataclass(frozen=True)
class TimedScores(Scores, Timed):
    """Shares of rows that are right, and what it took to compute them."""


def cotrained(
    rows: Split,
    learners: Sequence[LearnerSpec],
    seed: int,
    *,
    home_models: bool = True,
    privacy: PrivacySettings | None = None,
    extractor: Extractor | None = None,
    **settings: Any,
) -> FederationResult:
    """A task of many rounds to its end, a learner per silo; `settings` as task.yaml has them.

    Models at home take all of P, as the papers' do; silos differ in their seeds.
    """
    names = silo_names(len(rows.private))

    def silo_settings(index: int) -> TrainingSettings:
        return TrainingSettings(
            model=learners[index],
            seed=silo_seed(seed, index),
            consensus_share=1.0,
            privacy=privacy or PrivacySettings(),
        )

    silos = make_silos(names, rows.private, silo_settings, rows.patients)
    if extractor is not None:
        settings["extractor"] = EXTRACTOR_DIGEST
    definition = define_task(rows.public, rows.classes, names, **settings)
    return run_federation(
        definition, silos, rows.public, extractor=extractor, home_models=home_models
    )


def local(rows: Split, learners: Sequence[LearnerSpec], seed: int, steps: int = 1) -> TimedScores:
    """Every silo on its own."""
    models = [
        train_alone(rows, part, learner, silo_seed(seed, index), steps)
        for index, (part, learner) in enumerate(zip(rows.private, learners, strict=True))
    ]
    return timed_scores(models, rows)


def central(rows: Split, learner: LearnerSpec, seed: int, steps: int = 1) -> TimedScores:
    """One learner of all private rows, which nobody may have."""
    model = train_alone(rows, pooled(rows.private), learner, silo_seed(seed, 0), steps)
    return timed_scores([model], rows)


def federated(
    rows: Split, learners: Sequence[LearnerSpec], seed: int, **settings: Any
) -> TimedScores:
    """The silos' models at home after a task; everything else is `cotrained`'s."""
    result = cotrained(rows, learners, seed, **settings)
    return timed_scores(list(result.home_models.values()), rows, result.labels())


def timed_scores(
    models: Sequence[Predictor], rows: Split, consensus: Labels | None = None
) -> TimedScores:
    """`score`, as a result of a paper's table."""
    return TimedScores(**vars(score(models, rows, consensus)))


def silo_seed(seed: int, index: int) -> int:
    """A silo's seed, its own in every run."""
    return 1000 * seed + index
