"""Federated co-training at one silo: fit on D ∪ P, vote on U, replace P by the consensus.

Iterative learners continue from their last state for b local steps; all others are fitted anew. P is always
the latest consensus: it replaces what came before and never accumulates.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from silo_agent.trainer.models.protocol import AnyLearner, Features, IterativeLearner, Labelled
from wire.ballot import ABSTAIN

Consensus: TypeAlias = npt.NDArray[np.integer]


@dataclass(frozen=True, eq=False)
class CoTraining:
    """What stays the same over a task: D, U, and how a learner is made."""

    private: Labelled
    public: Features
    build: Callable[[int], AnyLearner]
    """An untrained learner for a seed."""
    local_steps: int
    seed: int

    def fit(
        self, round_number: int, consensus: Consensus | None, previous: AnyLearner | None
    ) -> AnyLearner:
        """The learner of round `round_number`, given the latest consensus and the learner of the round before."""
        pseudo = self.pseudo_labelled(consensus)
        seed = round_seed(self.seed, round_number)
        learner = previous if isinstance(previous, IterativeLearner) else self.build(self.seed)
        if isinstance(learner, IterativeLearner):
            learner.advance(self.private, pseudo, self.local_steps, seed)
        else:
            together = union(self.private, pseudo)
            learner.fit(together.features, together.labels)
        return learner

    def pseudo_labelled(self, consensus: Consensus | None) -> Labelled | None:
        """P: the rows of U that have a consensus label; None if there is none at all."""
        if consensus is None:
            return None
        agreed = consensus != ABSTAIN
        if not agreed.any():
            return None
        return Labelled(self.public[agreed], consensus[agreed].astype(np.int64))


def union(private: Labelled, pseudo: Labelled | None) -> Labelled:
    """D ∪ P, private rows first."""
    if pseudo is None:
        return private
    return Labelled(
        np.concatenate([private.features, pseudo.features]),
        np.concatenate([private.labels, pseudo.labels]),
    )


def round_seed(seed: int, round_number: int) -> int:
    """A seed of its own for every round, so that a restarted trainer draws what it would have drawn."""
    text = f"{seed}/{round_number}".encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:4], "big")
