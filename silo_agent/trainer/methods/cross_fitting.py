"""Cross-fitting: a row of U is labelled by a learner that has not seen the row's own pseudo-label.

Learners that memorise P give the consensus back as they got it, and nothing a silo knows moves it any more. With
k folds of U each fold is labelled by a learner of D and the rest of P, so the silo's own rows speak again.

Every silo draws folds of its own. With the same ones everywhere the silos' learners of a fold would be wrong about
the same rows, having all learned from the same half of the same labels, and their vote would repair less.

A learner that is fitted anew is fitted k times. One that continues becomes k, each of which never meets the labels
of its fold, which therefore are the same in all rounds; and one more, which meets all of P and stays at home.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from silo_agent.trainer.methods.co_training import Consensus, CoTraining
from silo_agent.trainer.methods.keyed_random import keyed_random_words
from silo_agent.trainer.models.protocol import AnyLearner, Features, IterativeLearner, Labels
from silo_agent.trainer.models.teachers import round_robin
from wire.ballot import ABSTAIN

Folds: TypeAlias = npt.NDArray[np.int64]
"""(rows,) the fold of each public row."""


@dataclass(frozen=True, eq=False)
class FoldLearners:
    """The learners of a round."""

    whole: AnyLearner | None = field(repr=False)
    """Has seen all of P; None where it is fitted anew when it is wanted."""
    parts: tuple[AnyLearner, ...] = field(default=(), repr=False)
    """By fold, which each has not seen; none before there is a P, when all would be alike."""

    def predict(self, public: Features, folds: Folds) -> Labels:
        """(rows,) each fold's labels, by its own learner."""
        if not self.parts:
            if self.whole is None:
                raise ValueError("there is no learner to ask")
            return np.asarray(self.whole.predict(public), dtype=np.int64)
        labels = np.empty(len(public), dtype=np.int64)
        for fold, learner in enumerate(self.parts):
            mine = folds == fold
            if mine.any():
                labels[mine] = learner.predict(public[mine])
        return labels


def folds_of(rows: int, count: int, text: str) -> Folds:
    """`count` folds whose sizes differ by one at most, drawn by a text."""
    words = keyed_random_words(f"cross-fit/{text}", (rows,))
    return round_robin(np.argsort(words, kind="stable"), count)


def fit_fold_learners(
    training: CoTraining,
    round_number: int,
    consensus: Consensus | None,
    previous: AnyLearner | FoldLearners | None,
    folds: Folds,
    count: int,
) -> FoldLearners:
    """The learners of round `round_number`, given the latest consensus and those of the round before.

    A single `previous` learner is one that has not seen a P: all go on from it.
    """
    held = previous if isinstance(previous, FoldLearners) else FoldLearners(previous)
    if consensus is None and not held.parts:
        return FoldLearners(training.fit(round_number, None, held.whole))
    begun: tuple[AnyLearner | None, ...] = held.parts or tuple(
        deepcopy(held.whole) for _ in range(count)
    )
    parts = tuple(
        training.fit(round_number, _without(consensus, folds == fold), learner)
        for fold, learner in enumerate(begun)
    )
    continues = isinstance(parts[0], IterativeLearner)
    return FoldLearners(
        training.fit(round_number, consensus, held.whole) if continues else None, parts
    )


def _without(consensus: Consensus | None, fold: npt.NDArray[np.bool_]) -> Consensus | None:
    return None if consensus is None else np.where(fold, ABSTAIN, consensus)
