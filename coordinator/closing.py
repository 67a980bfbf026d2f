"""Closes a round: counts the stored ballots, forms the consensus, publishes it, opens the next round.

Everything is read from the store, so a coordinator killed at any point of this does the same again after its
restart and reaches the same consensus.
"""

from __future__ import annotations

from datetime import datetime

import numpy as np

from coordinator.consensus import Tally, TieKey, changed_rows, form_consensus, rule_for
from coordinator.rounds import ClosedBy, Round, settled
from coordinator.store import Store
from coordinator.store.records import Consensus, TaskRecord
from wire.ballot import ABSTAIN, digest, pack, unpack


def close_round(
    store: Store, task: TaskRecord, current: Round, by: ClosedBy, now: datetime
) -> TaskRecord | None:
    """The task after the round has been closed, or None if someone else had closed it."""
    if not store.tasks.begin_close(current, by):
        return None
    consensus = count(store, task, current.number)
    history = [closed.changed_rows for closed in store.tasks.history(task.name)]
    policy = task.definition.rounds
    finished = ""
    if settled(policy, task.definition.rows, [*history, consensus.changed_rows]):
        finished = (
            f"The consensus settled: at most {policy.stop_churn:.1%} of the rows changed in "
            f"{policy.stop_patience} rounds in a row."
        )
    elif current.number >= policy.max_rounds:
        finished = f"All {policy.max_rounds} rounds were held."
    return store.tasks.publish(current, consensus, now, finished)


def count(store: Store, task: TaskRecord, number: int) -> Consensus:
    """The consensus of the ballots stored for a round."""
    shape = task.definition.shape
    tally = Tally(shape)
    for _, payload in store.ballots.payloads(task.name, number):
        tally.add(payload)
    labels = form_consensus(
        tally, rule_for(task.definition.consensus), TieKey.of(task.digest, number)
    )
    payload = pack(labels, shape.as_index())
    changed = task.definition.rows
    if number > 1:
        _, previous = store.tasks.consensus(task.name, number - 1)
        changed = changed_rows(unpack(previous, shape.as_index()), labels)
    return Consensus(
        payload=payload,
        digest=digest(payload),
        changed_rows=changed,
        abstained_rows=int(np.count_nonzero(labels == ABSTAIN)),
        ballots=tally.ballots,
    )
