"""The ballots of a round for a thread that counts them: each is read by one short call to the store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from coordinator.store import Store
from coordinator.store.executor import StoreExecutor


@dataclass(frozen=True)
class StoredBallots:
    """A `BallotSource` that holds one ballot in memory at a time. Not to be iterated in a thread of the store."""

    store: Store
    in_store: StoreExecutor
    task: str
    round_number: int
    silos: tuple[str, ...]
    """Whose ballots are read, in this order; each must be stored."""

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        read = self.store.ballots.payload
        for silo in self.silos:
            yield silo, self.in_store.from_thread(read, self.task, self.round_number, silo)
