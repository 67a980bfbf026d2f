"""Per-class threshold (CoFED): a class claims a row if enough of the silos that know it voted for it.

Several classes may claim a row; each silo then gets a label only where exactly one class it knows does.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coordinator.consensus.poll import Poll
from coordinator.consensus.tally import ROW_BLOCK, Tally
from wire.ballot import BallotShape, Encoding, Packed, Planes, class_planes


@dataclass(frozen=True)
class PerClassThreshold:
    """Class c claims a row if COUNT / TOTAL > α, in integers: a share that is just α is not enough.

    TOTAL is the weight of all silos that know c and voted on anything; COUNT of those that voted c on the row. An
    abstention on a row counts against every class; a ballot without any vote is as if it had not come. A vote for
    a class the silo does not know counts nothing.
    """

    threshold_permille: int

    def __post_init__(self) -> None:
        if not 0 <= self.threshold_permille < 1000:
            raise ValueError(f"a threshold is 0 to 999 thousandths, not {self.threshold_permille}")

    def __call__(self, poll: Poll) -> bytes:
        """The claims as a ONE_HOT ballot."""
        shape = BallotShape(poll.shape.rows, poll.shape.classes, Encoding.ONE_HOT)
        tally = Tally(shape)
        total = np.zeros(shape.classes, dtype=np.int64)
        for silo, payload in poll.ballots:
            known = list(poll.known(silo))
            votes = _votes(payload, poll.shape, known)
            if votes.any():
                tally.add(votes.reshape(-1).data, poll.weights[silo])
                total[known] += poll.weights[silo]
        claims = np.empty((shape.classes, shape.plane_bytes), dtype=np.uint8)
        needed = total * self.threshold_permille
        for start in range(0, shape.rows, ROW_BLOCK):
            stop = min(start + ROW_BLOCK, shape.rows)
            counts = tally.counts(start, stop).T
            for index in range(shape.classes):
                claimed = counts[index].astype(np.int64) * 1000 > needed[index]
                claims[index, start // 8 : (stop + 7) // 8] = np.packbits(claimed)
        return claims.tobytes()


def _votes(payload: Packed, shape: BallotShape, known: list[int]) -> Planes:
    planes = class_planes(payload, shape)
    if len(known) == shape.classes:
        return planes
    votes = np.zeros_like(planes)
    votes[known] = planes[known]
    return votes
