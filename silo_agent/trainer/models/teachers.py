"""Teachers: learners with a shard of the rows each; and students, who learn what teachers answered."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from silo_agent.trainer.models.protocol import AnyLearner, Features, Labelled, Labels
from silo_agent.trainer.models.scratch_fit import fit_from_scratch
from wire.ballot import ABSTAIN

Build = Callable[[int], AnyLearner]
"""An untrained learner for a seed."""


def round_robin(order: npt.NDArray[np.int64], groups: int) -> npt.NDArray[np.int64]:
    """(n,) the group of each element; element order[i] is in group i mod `groups`, so sizes differ by one at most."""
    assigned = np.empty(len(order), dtype=np.int64)
    assigned[order] = np.arange(len(order)) % groups
    return assigned


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
        votes = fit_predict(build(seed), private[shards == teacher], rows, seed)
        cast = np.flatnonzero((votes >= 0) & (votes < classes))
        counts[cast, votes[cast]] += 1
    return counts


def fit_predict(learner: AnyLearner, labelled: Labelled, rows: Features, seed: int) -> Labels:
    """(rows,) predictions after training on `labelled` without its rows of label -1.

    All -1 if there are no rows, or training raises ValueError.
    """
    lesson = labelled[labelled.labels != ABSTAIN]
    try:
        if not len(lesson):
            raise ValueError("there is nothing to learn from")
        return np.asarray(fit_from_scratch(learner, lesson, seed).predict(rows), dtype=np.int64)
    except ValueError:
        # Too few rows, or too few classes. Letting it out would tell the network side that something is
        # special about a patient.
        return np.full(len(rows), ABSTAIN, dtype=np.int64)


def agreed(students: npt.NDArray[np.int64]) -> Labels:
    """(rows,) of (students, rows): the label all of them give, -1 where they differ or one gives none."""
    first = students[0]
    labels: Labels = np.where((students == first).all(axis=0), first, ABSTAIN)
    return labels
