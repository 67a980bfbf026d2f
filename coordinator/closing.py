"""Closes a round: counts the stored ballots, forms the consensus, publishes it, opens the next round.

Everything is read from the store, so what a coordinator killed at any point of this has begun, it finishes
after its restart, or another replica finishes at once, and the consensus is the same. Only party-level noise is
drawn anew; then the one consensus that was published stands, and no other was ever seen. A store put back from a
backup may not know of one that was: silos that cast their ballots again name it, and it is booked with the new one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime

from coordinator.consensus import PartyRelease, changed_rows, elect, labels_for
from coordinator.rounds import ClosedBy, Round, settled
from coordinator.store import Store
from coordinator.store.records import Consensus, TaskRecord
from wire.ballot import digest
from wire.crash_points import crash_point
from wire.privacy.randomness import Bits, SecureBits

_SECURE = SecureBits()


def close_round(
    store: Store,
    task: TaskRecord,
    current: Round,
    by: ClosedBy,
    now: datetime,
    bits: Bits = _SECURE,
) -> TaskRecord | None:
    """The task after the round has been closed, or None if someone else has closed it or is doing so."""
    with store.closing_turn(current.task, current.number) as mine:
        return _close(store, task, current, by, now, bits) if mine else None


def _close(
    store: Store, task: TaskRecord, current: Round, by: ClosedBy, now: datetime, bits: Bits
) -> TaskRecord | None:
    crash_point("closing-decided")
    if not store.tasks.begin_close(current, by):
        return None
    crash_point("closing-begun")
    consensus = count(store, task, current.number, bits)
    policy = task.definition.rounds
    changed = store.tasks.recent_changes(task.name, policy.stop_patience)
    finished = ""
    if settled(policy, task.definition.rows, [*changed, consensus.changed_rows]):
        finished = (
            f"The consensus settled: at most {policy.stop_churn:.1%} of the rows changed in "
            f"{policy.stop_patience} rounds in a row."
        )
    elif current.number >= policy.max_rounds:
        finished = f"All {policy.max_rounds} rounds were held."
    crash_point("consensus-formed")
    after = store.tasks.publish(current, consensus, now, finished)
    crash_point("consensus-published")
    return after


def count(store: Store, task: TaskRecord, number: int, bits: Bits) -> Consensus:
    """The consensus of the ballots stored for a round."""
    definition = task.definition
    declared = store.ballots.declarations(task.name, number)
    outcome = elect(definition, number, declared, StoredBallots(store, task.name, number), bits)
    changed = definition.rows
    if number > 1:
        _, previous = store.tasks.consensus(task.name, number - 1)
        before = labels_for(previous, outcome.shape, range(outcome.shape.classes))
        changed = changed_rows(before, outcome.labels())
    return Consensus(
        payload=outcome.payload,
        digest=digest(outcome.payload),
        changed_rows=changed,
        abstained_rows=outcome.abstained_rows,
        ballots=outcome.ballots,
        release=_booked(outcome.release, store, task.name, number),
        agreement=outcome.agreement,
    )


def _booked(
    release: PartyRelease | None, store: Store, task: str, number: int
) -> PartyRelease | None:
    """A release as it is entered in the ledger: with those of the same round that only the silos know of."""
    if release is None:
        return None
    return replace(release, draws=1 + len(store.ballots.consensuses_seen(task, number)))


@dataclass(frozen=True)
class StoredBallots:
    """The ballots of a round, one at a time out of the store, by silo; may be gone through again."""

    store: Store
    task: str
    number: int

    def __iter__(self) -> Iterator[tuple[str, bytes]]:
        return self.store.ballots.payloads(self.task, self.number)
