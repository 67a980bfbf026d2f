"""Closes a round: counts the stored ballots, forms the consensus, publishes it, opens the next round.

Counting takes seconds for millions of rows, so it is done in a thread of its own; the store is asked in short calls,
and publishing is one transaction.

Everything is read from the store: what a coordinator killed at any point of this has begun, it finishes after its
restart, or another replica finishes at once, and the consensus is the same. Only party-level noise is drawn anew;
then the one consensus that was published stands, and no other was ever seen. A store restored from a backup may not
know of one that was: silos that cast their ballots again name it, and it is booked with the new one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime

from coordinator.consensus import PartyRelease, changed_rows, elect, labels_for
from coordinator.round_engine import ClosedBy, Round, settled
from coordinator.rounds.stored_ballots import StoredBallots
from coordinator.store import Store
from coordinator.store.executor import StoreExecutor
from coordinator.store.records import Consensus, TaskRecord
from wire.ballot import digest
from wire.privacy.randomness import Bits, SecureBits
from wire.runtime.crash_points import crash_point

_SECURE = SecureBits()


@dataclass(frozen=True)
class RoundCloser:
    """Closes rounds in the calling thread, which must not be one of the store's; different rounds at once if asked."""

    store: Store
    in_store: StoreExecutor
    clock: Callable[[], datetime]
    bits: Bits = _SECURE
    """Of which party-level noise is drawn."""

    def close(self, task: TaskRecord, current: Round, by: ClosedBy) -> TaskRecord | None:
        """The task after the round has been closed, or None if someone else has closed it or is doing so."""
        with self._locked(current) as mine:
            return self._close(task, current, by) if mine else None

    @contextmanager
    def _locked(self, current: Round) -> Iterator[bool]:
        """True inside the block if this replica is the one that closes the round."""
        ask = self.in_store.from_thread
        lock = ask(self.store.try_close_lock, current.task, current.number)
        try:
            yield lock is not None
        finally:
            if lock is not None:
                ask(lock.release)

    def _close(self, task: TaskRecord, current: Round, by: ClosedBy) -> TaskRecord | None:
        ask = self.in_store.from_thread
        crash_point("closing-decided")
        if not ask(self.store.tasks.begin_close, current, by):
            return None
        crash_point("closing-begun")
        consensus = self._count(task, current.number)
        finished = self._reason_to_finish(task, current.number, consensus)
        crash_point("consensus-formed")
        after = ask(self.store.tasks.publish, current, consensus, self.clock(), finished)
        crash_point("consensus-published")
        return after

    def _count(self, task: TaskRecord, round_number: int) -> Consensus:
        """The consensus of the ballots stored for a round."""
        ask, definition = self.in_store.from_thread, task.definition
        declared = ask(self.store.ballots.declarations, task.name, round_number)
        ballots = StoredBallots(self.store, self.in_store, task.name, round_number, tuple(declared))
        outcome = elect(definition, round_number, declared, ballots, self.bits)
        changed = definition.rows
        if round_number > 1:
            _, previous = ask(self.store.tasks.consensus, task.name, round_number - 1)
            before = labels_for(previous, outcome.shape, range(outcome.shape.classes))
            changed = changed_rows(before, outcome.labels())
        return Consensus(
            payload=outcome.payload,
            digest=digest(outcome.payload),
            changed_rows=changed,
            abstained_rows=outcome.abstained_rows,
            ballots=outcome.ballots,
            release=self._booked(outcome.release, task.name, round_number),
            agreement=outcome.agreement,
        )

    def _booked(
        self, release: PartyRelease | None, task: str, round_number: int
    ) -> PartyRelease | None:
        """A release as it is entered in the ledger: with those of the same round that only the silos know of."""
        if release is None:
            return None
        seen = self.in_store.from_thread(self.store.ballots.consensuses_seen, task, round_number)
        return replace(release, draws=1 + len(seen))

    def _reason_to_finish(self, task: TaskRecord, round_number: int, consensus: Consensus) -> str:
        """Why the task ends with this round; empty if it goes on."""
        policy = task.definition.rounds
        changed = self.in_store.from_thread(
            self.store.tasks.recent_changes, task.name, policy.stop_patience
        )
        if settled(policy, task.definition.rows, [*changed, consensus.changed_rows]):
            return (
                f"The consensus settled: at most {policy.stop_churn:.1%} of the rows changed in "
                f"{policy.stop_patience} rounds in a row."
            )
        if round_number >= policy.max_rounds:
            return f"All {policy.max_rounds} rounds were held."
        return ""
