"""What a rule decides on: the ballots of one round, what each counts, and what its silo knows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from coordinator.consensus.tally import Tally
from coordinator.consensus.ties import TieKey
from wire.ballot import BallotShape, Packed


class BallotSource(Protocol):
    """The ballots of a round by silo, in a fixed order; may be gone through more than once."""

    def __iter__(self) -> Iterator[tuple[str, Packed]]: ...


@dataclass(frozen=True)
class Poll:
    """One round's ballots. Nothing published may depend on the order of ballots or on silos' names."""

    shape: BallotShape
    ballots: BallotSource
    weights: Mapping[str, int]
    """What each silo's ballot counts."""
    key: TieKey
    known: Callable[[str], Sequence[int]]
    """The classes a silo knows."""

    def tally(self, *, certainties: bool = False, without: frozenset[str] = frozenset()) -> Tally:
        """All ballots counted by weight, but for those of the silos `without`."""
        tally = Tally(self.shape, certainties=certainties)
        for silo, payload in self.ballots:
            if silo not in without:
                tally.add(payload, self.weights[silo])
        return tally
