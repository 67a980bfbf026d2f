"""How right models and a consensus are, on rows whose labels no silo of the federation has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from experiments.data.splits import Split
from silo_agent.trainer.methods.co_training import CoTraining
from silo_agent.trainer.models.catalogue import LearnerSpec, build
from silo_agent.trainer.models.protocol import AnyLearner, Features, Labelled, Labels
from wire.ballot import ABSTAIN


class Predictor(Protocol):
    """A trained model, whoever trained it."""

    def predict(self, X: Features, /) -> Labels:
        """One class index per row."""


@dataclass(frozen=True)
class Scores:
    """Shares of rows that are right."""

    accuracy: float
    """Of the test rows, by the silos' own models: the mean over silos."""
    worst: float
    """The same for the silo that fares worst."""
    consensus: float | None
    """Of the public rows that have a consensus label; None where there is none."""
    answered: float | None
    """Share of the public rows that have one; None if there is no consensus."""


def score(models: Sequence[Predictor], rows: Split, consensus: Labels | None = None) -> Scores:
    """How right models are on the test rows, and a consensus on U."""
    accuracies = [accuracy(model, rows.test) for model in models]
    right = answered = None
    if consensus is not None:
        said = consensus != ABSTAIN
        answered = float(said.mean())
        scored = said & (rows.public_labels != ABSTAIN)
        if scored.any():
            right = float(np.mean(consensus[scored] == rows.public_labels[scored]))
    return Scores(float(np.mean(accuracies)), min(accuracies), right, answered)


def accuracy(model: Predictor, rows: Labelled) -> float:
    """Share of the rows whose label the model names."""
    return float(np.mean(np.asarray(model.predict(rows.features)) == rows.labels))


def share_right(labels: Labels, truth: Labels) -> float:
    """Share of the labelled rows whose label is the true one."""
    labelled = labels != ABSTAIN
    return float(np.mean(labels[labelled] == truth[labelled]))


def train_alone(
    rows: Split, private: Labelled, learner: LearnerSpec, seed: int, steps: int = 1
) -> AnyLearner:
    """The learner of someone who holds `private` and takes no part; an iterative one takes `steps` steps."""

    def untrained(seed: int) -> AnyLearner:
        return build(learner, rows.classes, tuple(private.features.shape[1:]), seed)

    return CoTraining(private, rows.public, untrained, steps, seed).fit(1, None, None)
