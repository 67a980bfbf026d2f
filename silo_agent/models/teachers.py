"""Teachers: learners with a shard of the rows each; and students, who learn what teachers answered."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from silo_agent.models.afresh import fitted
from silo_agent.models.protocol import AnyLearner, Features, Labelled, Labels
from wire.ballot import ABSTAIN

Build = Callable[[int], AnyLearner]
"""An untrained learner for a seed."""


def count_votes(
    build: Build,
    private: Labelled,
    shards: npt.NDArray[np.int64],
    rows: Features,
    classes: int,
    seeds: Sequence[int],
) -> npt.NDArray[np.int64]:
    """(rows, classes): how many teachers vote for a class. Teacher k has the rows of shard k and the seed seeds[k]."""
    counts = np.zeros((len(rows), classes), dtype=np.int64)
    for teacher, seed in enumerate(seeds):
        votes = taught(build(seed), private[shards == teacher], rows, seed)
        cast = np.flatnonzero((votes >= 0) & (votes < classes))
        counts[cast, votes[cast]] += 1
    return counts


def taught(learner: AnyLearner, lesson: Labelled, rows: Features, seed: int) -> Labels:
    """(rows,) what `learner` says after `lesson`, whose rows labelled -1 teach nothing; -1 if it cannot learn from it."""
    try:
        return np.asarray(
            fitted(learner, lesson[lesson.labels != ABSTAIN], seed).predict(rows), dtype=np.int64
        )
    except ValueError:
        # Too few rows, or too few classes. Letting it out would tell the network side that something is
        # special about a patient.
        return np.full(len(rows), ABSTAIN, dtype=np.int64)


def agreed(students: npt.NDArray[np.int64]) -> Labels:
    """(rows,) of (students, rows): the label all of them give, -1 where they differ or one gives none."""
    first = students[0]
    labels: Labels = np.where((students == first).all(axis=0), first, ABSTAIN)
    return labels
