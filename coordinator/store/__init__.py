"""Everything the coordinator must not forget: silos, public sets, tasks, rounds, ballots."""

from __future__ import annotations

from coordinator.store.ballots import BallotStore
from coordinator.store.engine import migrate, open_engine
from coordinator.store.public_sets import PublicSetStore
from coordinator.store.silos import SiloStore
from coordinator.store.tasks import TaskStore

__all__ = ["Store"]


class Store:
    """One database. Methods block; the service calls them from its store thread."""

    def __init__(self, url: str) -> None:
        self._engine = open_engine(url)
        migrate(self._engine)
        self.silos = SiloStore(self._engine)
        self.public_sets = PublicSetStore(self._engine)
        self.tasks = TaskStore(self._engine)
        self.ballots = BallotStore(self._engine)

    def close(self) -> None:
        """Returns every connection."""
        self._engine.dispose()
