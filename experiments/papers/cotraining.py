"""FedCT as a task, and who does without; every learner and every vote is the product's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from experiments.data import Dataset, Deal, load, pooled
from experiments.federation import Course, Hospital, hold, task
from experiments.papers.experiment import Timed
from silo_agent.models.catalogue import LearnerSpec, build
from silo_agent.models.extractors.protocol import Extractor
from silo_agent.models.protocol import AnyLearner, Features, Labelled, Labels
from silo_agent.privacy.settings import PrivacySettings
from silo_agent.trainer.fedct import CoTraining
from silo_agent.trainer.settings import TrainingSettings
from wire.ballot import ABSTAIN

NAMED = "00" * 32
"""What a task calls an extractor that is handed to the silos directly."""


class Predicts(Protocol):
    """A trained model, whoever trained it."""

    def predict(self, X: Features, /) -> Labels:
        """One class index per row."""


@dataclass(frozen=True)
class Scores(Timed):
    """Shares of rows that are right."""

    accuracy: float
    """Of the test rows, by the silos' own models: the mean over silos."""
    worst: float
    """The same for the silo that fares worst."""
    consensus: float | None
    """Of the public rows that have a consensus label; None where there is none."""
    answered: float | None
    """Share of the public rows that have one."""


@lru_cache(maxsize=1)
def loaded(name: str, folder: Path | None) -> Dataset:
    """A data set, kept for the next cell of the same process."""
    return load(name, folder)


def names(silos: int) -> list[str]:
    """silo-001 …"""
    return [f"silo-{number:03}" for number in range(1, silos + 1)]


def cotrained(
    rows: Deal,
    learners: Sequence[LearnerSpec],
    seed: int,
    *,
    home: bool = True,
    privacy: PrivacySettings | None = None,
    extractor: Extractor | None = None,
    **settings: Any,
) -> Course:
    """A task of many rounds to its end, a learner per silo; `settings` as task.yaml has them.

    Models at home take all of P, as the papers' do; silos differ in their seeds.
    """
    silos = names(len(rows.private))
    patients = rows.patients or [None] * len(silos)
    hospitals = {
        name: Hospital(
            part,
            TrainingSettings(
                model=learner,
                seed=own_seed(seed, number),
                consensus_share=1.0,
                privacy=privacy or PrivacySettings(),
            ),
            whose,
        )
        for number, (name, part, learner, whose) in enumerate(
            zip(silos, rows.private, learners, patients, strict=True)
        )
    }
    if extractor is not None:
        settings["extractor"] = NAMED
    definition = task(rows.public, rows.classes, silos, **settings)
    return hold(definition, hospitals, rows.public, extractor=extractor, home=home)


def alone(
    rows: Deal, part: Labelled, learner: LearnerSpec, seed: int, steps: int = 1
) -> AnyLearner:
    """The learner of somebody who has `part` and takes no part; one that continues takes `steps` steps."""

    def made(number: int) -> AnyLearner:
        return build(learner, rows.classes, tuple(part.features.shape[1:]), number)

    return CoTraining(part, rows.public, made, steps, seed).fit(1, None, None)


def local(rows: Deal, learners: Sequence[LearnerSpec], seed: int, steps: int = 1) -> Scores:
    """Every silo on its own."""
    models = [
        alone(rows, part, learner, own_seed(seed, number), steps)
        for number, (part, learner) in enumerate(zip(rows.private, learners, strict=True))
    ]
    return score(models, rows)


def central(rows: Deal, learner: LearnerSpec, seed: int, steps: int = 1) -> Scores:
    """One learner of all private rows, which nobody may have."""
    return score([alone(rows, pooled(rows.private), learner, own_seed(seed, 0), steps)], rows)


def federated(rows: Deal, learners: Sequence[LearnerSpec], seed: int, **settings: Any) -> Scores:
    """The silos' models at home after a task; everything else is `cotrained`'s."""
    course = cotrained(rows, learners, seed, **settings)
    return score(list(course.home.values()), rows, consensus_of(course))


def consensus_of(course: Course) -> Labels:
    """The last consensus on U."""
    return course.labels().astype(np.int64)


def score(models: Sequence[Predicts], rows: Deal, consensus: Labels | None = None) -> Scores:
    """How right models are on the test rows, and a consensus on U."""
    right = [
        float(np.mean(np.asarray(model.predict(rows.test.features)) == rows.test.labels))
        for model in models
    ]
    agreed = answered = None
    if consensus is not None:
        said = consensus != ABSTAIN
        answered = float(said.mean())
        scored = said & (rows.hidden != ABSTAIN)
        if scored.any():
            agreed = float(np.mean(consensus[scored] == rows.hidden[scored]))
    return Scores(float(np.mean(right)), min(right), agreed, answered)


def own_seed(seed: int, number: int) -> int:
    """A silo's seed, its own in every run."""
    return 1000 * seed + number
