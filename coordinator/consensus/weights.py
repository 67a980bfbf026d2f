"""What each silo's ballot counts: its credibility, times what its declared noise leaves of a vote.

Sizes are silos' own word, as powers of two. They count within three doublings of the middle silo's: nobody counts
more than eight times as much as the middle, or less than an eighth. A silo that claims a million patients gains
a factor of eight by it and moves nobody else, as the middle hardly moves. One that declares no size counts as the
lightest can.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

from coordinator.consensus.noise_weights import ballot_weights
from wire.privacy.declaration import Declaration
from wire.task.consensus_policy import ConsensusPolicy, Credibility
from wire.task.definition import TaskDefinition

DOUBLINGS: Final = 3
"""How far a declared size may lie from the middle silo's and still count in full."""


def weights_of(task: TaskDefinition, declared: Mapping[str, Declaration]) -> dict[str, int]:
    """What each silo's ballot counts: integers without a common divisor, times the task's votes per ballot.

    All the same behind party-level noise, whose cost rests on it.
    """
    votes = task.votes_per_ballot
    if task.privacy.party_gamma is not None or not declared:
        return dict.fromkeys(declared, votes)
    by_noise = ballot_weights(list(declared.values()), len(task.labels), task.encoding)
    by_trust = credibility(task.consensus, declared)
    product = {silo: noise * by_trust[silo] for silo, noise in zip(declared, by_noise, strict=True)}
    common = math.gcd(*product.values()) or 1
    return {silo: votes * weight // common for silo, weight in product.items()}


def credibility(policy: ConsensusPolicy, declared: Mapping[str, Declaration]) -> dict[str, int]:
    """How far each silo is trusted, apart from its noise."""
    match policy.credibility:
        case Credibility.EQUAL:
            return dict.fromkeys(declared, 1)
        case Credibility.SET:
            return {silo: policy.weights.get(silo, 1) for silo in declared}
        case Credibility.DATA_SIZE:
            return _by_size({silo: one.units_log2 for silo, one in declared.items()})


def _by_size(sizes: Mapping[str, int | None]) -> dict[str, int]:
    declared = sorted(size for size in sizes.values() if size is not None)
    if not declared:
        return dict.fromkeys(sizes, 1)
    smallest = declared[(len(declared) - 1) // 2] - DOUBLINGS
    return {
        silo: 1 if size is None else 1 << min(max(size - smallest, 0), 2 * DOUBLINGS)
        for silo, size in sizes.items()
    }
