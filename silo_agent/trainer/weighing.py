"""How much of the consensus a silo's own model learns from: as much as serves its own patients. Nobody is told.

Where the consensus is mostly noise, D ∪ P is worse than D. Cross-validation on D tells: each share of P is tried,
patients are left out together, and the share under which they are labelled best is taken, of equals the largest.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from silo_agent.models.protocol import AnyLearner
from silo_agent.trainer.fedct import Consensus, CoTraining
from wire.ballot import ABSTAIN

SHARES: Final = (1.0, 0.3, 0.1, 0.0)
FOLDS: Final = 5
FEWEST: Final = 100
"""Rows below which validation cannot tell a gain of a few points from chance: the whole consensus is taken."""


def fit_at_home(
    training: CoTraining,
    patients: npt.NDArray[np.int64],
    number: int,
    consensus: Consensus | None,
    share: float | None = None,
) -> AnyLearner:
    """The model a hospital keeps, of a learner that is fitted anew; `share` of P, or validation's if None.

    One that continues has no use for this: it has learned from half D and half P all along.
    """
    if consensus is not None:
        if share is None:
            share = best_share(training, patients, number, consensus)
        consensus = _thinned(consensus, share, training.seed)
    return training.fit(number, consensus, None)


def best_share(
    training: CoTraining,
    patients: npt.NDArray[np.int64],
    number: int,
    consensus: Consensus,
) -> float:
    """The share of P under which the rows left out of D are labelled best."""
    if len(training.private) < FEWEST:
        return 1.0
    _, units = np.unique(patients, return_inverse=True)
    drawn = np.random.default_rng(training.seed).permutation(int(units.max()) + 1)
    folds = (drawn % FOLDS)[units]
    right = dict.fromkeys(SHARES, 0)
    for fold in range(FOLDS):
        held = training.private[folds == fold]
        if not len(held):
            continue
        rest = replace(training, private=training.private[folds != fold])
        for share in SHARES:
            learner = rest.fit(number, _thinned(consensus, share, training.seed), None)
            right[share] += int(np.count_nonzero(learner.predict(held.features) == held.labels))
    return max(SHARES, key=lambda share: right[share])


def _thinned(consensus: Consensus, share: float, seed: int) -> Consensus:
    """The consensus on a drawn `share` of its rows; a smaller share is part of a larger one."""
    if share >= 1:
        return consensus
    order = np.random.default_rng(seed).permutation(len(consensus))
    thinned = consensus.copy()
    thinned[order[round(share * len(consensus)) :]] = ABSTAIN
    return thinned
