"""How much of the consensus a silo's own model learns from: all of it, unless its own patients show that less is better.

Where the consensus is mostly noise, D ∪ P is worse than D. Cross-validation on D tells: each share of P is tried,
patients are left out together, and the largest share is taken that is not clearly worse than the best. Clearly,
because D is what the silo happens to have seen: classes that others know and it does not only P can teach it, and
D alone never misses them. Nobody is told what was chosen.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from silo_agent.trainer.methods.co_training import Consensus, CoTraining
from silo_agent.trainer.models.places import places
from silo_agent.trainer.models.protocol import AnyLearner
from wire.ballot import ABSTAIN

SHARES: Final = (1.0, 0.3, 0.1, 0.0)
FOLDS: Final = 5
FEWEST: Final = 100
"""Rows below which validation cannot tell harm of a few points from chance: the whole consensus is taken.
It is, too, where all patients fall into one fold, which can happen with very few of them."""
CLEARLY: Final = 1.0
"""Standard errors of a paired difference: the one-standard-error rule."""


def fit_at_home(
    training: CoTraining,
    patients: npt.NDArray[np.int64],
    round_number: int,
    consensus: Consensus | None,
    share: float | None = None,
) -> AnyLearner:
    """The model a hospital keeps, of a learner that is fitted anew; `share` of P, or validation's if None.

    One that continues has no use for this: it has learned from half D and half P all along.
    """
    if consensus is not None:
        if share is None:
            share = best_share(training, patients, round_number, consensus)
        consensus = _thinned(consensus, share, training.seed)
    return training.fit(round_number, consensus, None)


def best_share(
    training: CoTraining,
    patients: npt.NDArray[np.int64],
    round_number: int,
    consensus: Consensus,
) -> float:
    """The largest share of P under which rows left out of D are not labelled clearly worse than under the best."""
    folds = places(patients, FOLDS, f"final-fit/{training.seed}")
    if len(training.private) < FEWEST or len(np.unique(folds)) < 2:
        return 1.0
    right = {
        share: _right(training, folds, round_number, _thinned(consensus, share, training.seed))
        for share in SHARES
    }
    best = max(SHARES, key=lambda share: int(right[share].sum()))
    for share in SHARES:
        differing = int(np.count_nonzero(right[best] != right[share]))
        if right[best].sum() - right[share].sum() <= CLEARLY * math.sqrt(differing):
            return share
    return best


def _right(
    training: CoTraining, folds: npt.NDArray[np.int64], round_number: int, consensus: Consensus
) -> npt.NDArray[np.bool_]:
    """(n,) whether each row of D is labelled rightly by a learner that has not seen its fold, patients together."""
    right = np.zeros(len(folds), dtype=np.bool_)
    for fold in range(FOLDS):
        out = folds == fold
        held, rest = training.private[out], training.private[~out]
        if len(held) and len(rest):
            learner = replace(training, private=rest).fit(round_number, consensus, None)
            right[out] = learner.predict(held.features) == held.labels
    return right


def _thinned(consensus: Consensus, share: float, seed: int) -> Consensus:
    """The consensus on a drawn `share` of its rows; a smaller share is part of a larger one."""
    if share >= 1:
        return consensus
    order = np.random.default_rng(seed).permutation(len(consensus))
    thinned = consensus.copy()
    thinned[order[round(share * len(consensus)) :]] = ABSTAIN
    return thinned
