"""Teachers: learners with a shard of the rows each; and students, who learn what teachers answered."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from silo_agent.trainer.models.failures import checked_labels, constant_labels, log, place_of
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
        votes = fit_predict(build(seed), private[shards == teacher], rows, seed, classes)
        cast = np.flatnonzero(votes >= 0)
        counts[cast, votes[cast]] += 1
    return counts


def fit_predict(
    learner: AnyLearner, labelled: Labelled, rows: Features, seed: int, classes: int
) -> Labels:
    """(rows,) predictions after training on `labelled` without its rows of label -1; all -1 if the learner fails."""
    usable = labelled[labelled.labels != ABSTAIN]
    if not len(usable):
        return constant_labels(len(rows))
    try:
        said = fit_from_scratch(learner, usable, seed).predict(rows)
        return checked_labels(said, len(rows), classes)
    except Exception as error:
        # Letting it out would tell the network side that something is special about a patient.
        log.warning("teacher_failed", kind=type(error).__name__, place=place_of(error))
        return constant_labels(len(rows))


def agreed(students: npt.NDArray[np.int64]) -> Labels:
    """(rows,) of (students, rows): the label all of them give, -1 where they differ or one gives none."""
    first = students[0]
    labels: Labels = np.where((students == first).all(axis=0), first, ABSTAIN)
    return labels
