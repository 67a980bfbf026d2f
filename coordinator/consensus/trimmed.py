"""Trimmed by agreement: the silos that contradict the others most are left out, then the majority decides.

Each silo is compared, row by row, with the majority of all the *others*, so that nobody is measured by its own
vote. Rows on which it abstains, or on which the others are tied, are left out. The measure is the share of rows
on which it disagrees, d. Left out are the silos with the largest d, but only

- at most ⌊trim · silos⌋ of them; where equal d would make it more, all that are equal stay;
- only those that are *clearly* worse than the middle silo: d > 1.5 · d(middle), and by more than chance explains
  (three standard errors). Honest silos that are about as good as one another all keep their vote.

One pass decides; nobody is judged again without those left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

import numpy as np
import numpy.typing as npt

from coordinator.consensus.majority import majority
from coordinator.consensus.poll import Poll
from coordinator.consensus.rules import form_consensus
from coordinator.consensus.tally import ROW_BLOCK, Tally
from wire.ballot import ABSTAIN, Labels, unpack

CLEARLY: Final = Fraction(3, 2)
"""So many times the middle silo's disagreement is clearly more."""
ERRORS: Final = 3
"""Standard errors that chance may explain."""


@dataclass(frozen=True)
class Disagreement:
    """How a silo's votes compare with the majority of the others."""

    compared: int
    differing: int

    @property
    def disagreement(self) -> Fraction:
        """Share of the compared rows on which it says something else; `compared` is above 0."""
        return Fraction(self.differing, self.compared)


@dataclass(frozen=True)
class Trimmed:
    """The majority of those whose votes the others bear out."""

    trim_permille: int

    def __post_init__(self) -> None:
        if not 0 <= self.trim_permille < 500:
            raise ValueError(f"0 to 499 thousandths can be trimmed, not {self.trim_permille}")

    def __call__(self, poll: Poll) -> Labels:
        """(rows,) labels, ABSTAIN where nobody who is left voted."""
        tally = poll.tally()
        left_out = self.left_out(disagreements(poll, tally))
        if left_out:
            tally = poll.tally(without=left_out)
        return form_consensus(tally, majority, poll.key)

    def left_out(self, disagreements: Mapping[str, Disagreement]) -> frozenset[str]:
        """The silos whose ballots do not count."""
        judged = {silo: one.disagreement for silo, one in disagreements.items() if one.compared}
        most = len(judged) * self.trim_permille // 1000
        if not most:
            return frozenset()
        ordered = sorted(judged.values(), reverse=True)
        middle, border = ordered[len(ordered) // 2], ordered[most]
        return frozenset(
            silo
            for silo, share in judged.items()
            if share > border and _clearly_worse(share, middle, disagreements[silo].compared)
        )


def disagreements(poll: Poll, tally: Tally) -> dict[str, Disagreement]:
    """Every silo against the majority of the others; `tally` has all ballots of the poll."""
    leaders = _Leaders.of(tally)
    return {
        silo: leaders.disagreement(unpack(payload, poll.shape), poll.weights[silo])
        for silo, payload in poll.ballots
    }


@dataclass(frozen=True, eq=False)
class _Leaders:
    """Of every row the two classes with most votes, and how the three highest counts lie: what it takes to tell
    who would lead without one ballot."""

    leader: Labels
    runner_up: Labels
    lead: npt.NDArray[np.int64]
    """What the leader has more than the runner-up."""
    leads_third: npt.NDArray[np.bool_]
    runner_up_leads_third: npt.NDArray[np.bool_]

    @classmethod
    def of(cls, tally: Tally) -> _Leaders:
        rows = tally.shape.rows
        classes = np.zeros((3, rows), dtype=np.int32)
        highest = np.zeros((3, rows), dtype=np.int64)
        for start in range(0, rows, ROW_BLOCK):
            stop = min(start + ROW_BLOCK, rows)
            counts = tally.counts(start, stop).T.astype(np.int64)
            for place in range(min(3, len(counts))):
                best = counts.argmax(axis=0)
                at = (best, np.arange(stop - start))
                classes[place, start:stop], highest[place, start:stop] = best, counts[at]
                counts[at] = -1
        first, second, third = highest
        return cls(classes[0], classes[1], first - second, first > third, second > third)

    def disagreement(self, labels: Labels, weight: int) -> Disagreement:
        """A silo that is in the tally by `weight`, against what the tally says without it.

        Without its vote the leader may fall behind the runner-up, or a tie of these two be decided.
        """
        mine, next_mine = labels == self.leader, labels == self.runner_up
        same = mine & (self.lead > weight)
        overtaken = mine & (self.lead < weight) & self.runner_up_leads_third
        ahead = np.where(next_mine & (weight > 0), self.leads_third, self.lead > 0)
        differing = overtaken | (ahead & ~mine & (labels != ABSTAIN))
        agreed, differed = int(np.count_nonzero(same)), int(np.count_nonzero(differing))
        return Disagreement(agreed + differed, differed)


def _clearly_worse(share: Fraction, middle: Fraction, rows: int) -> bool:
    expected = float(max(middle, Fraction(1, rows)))
    error = math.sqrt(expected * (1 - expected) / rows)
    return share > CLEARLY * middle and float(share - middle) > ERRORS * error
