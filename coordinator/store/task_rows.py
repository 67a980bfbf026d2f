"""Rows of the tasks table as values, within the caller's transaction."""

from __future__ import annotations

from sqlalchemy import Connection, RowMapping, bindparam, select

from coordinator.store.closed_rounds import WITHOUT_BITS
from coordinator.store.records import TaskRecord, VotingState
from coordinator.store.rounds import closed_value, open_value
from coordinator.store.schema import rounds, tasks
from wire.errors import TASK_UNKNOWN, Refusal
from wire.task.definition import TaskDefinition, TaskStatus

# Asked with every ballot, hence built once.
_VOTING_TASK = (
    select(tasks.c.status, tasks.c.definition)
    .where(tasks.c.name == bindparam("name"))
    .with_for_update()
)
_ROUNDS = select(*WITHOUT_BITS).where(rounds.c.task == bindparam("name"))
_NEWEST_ROUND = _ROUNDS.order_by(rounds.c.number.desc()).limit(1)
_NEWEST_ROUNDS = _NEWEST_ROUND.limit(2)


def get_task(tx: Connection, name: str, *, lock: bool = False) -> TaskRecord:
    """One task within a transaction; `lock` keeps other replicas out until it ends."""
    query = select(tasks).where(tasks.c.name == name)
    row = tx.execute(query.with_for_update() if lock else query).mappings().first()
    if row is None:
        raise Refusal(TASK_UNKNOWN, task=name)
    return task_value(tx, row)


def get_voting_state(tx: Connection, name: str) -> VotingState:
    """What decides whether a ballot for a task is taken; the task is locked until the transaction ends."""
    task = tx.execute(_VOTING_TASK, {"name": name}).mappings().first()
    if task is None:
        raise Refusal(TASK_UNKNOWN, task=name)
    newest = tx.execute(_NEWEST_ROUND, {"name": name}).mappings().first()
    current = newest if newest and newest["closed_at"] is None else None
    return VotingState(
        status=TaskStatus(task["status"]),
        quorum=TaskDefinition.model_validate_json(task["definition"]).rounds.quorum,
        open_round=open_value(tx, current) if current else None,
    )


def task_value(tx: Connection, row: RowMapping) -> TaskRecord:
    """A task with its open and its latest closed round."""
    name: str = row["name"]
    newest = tx.execute(_NEWEST_ROUNDS, {"name": name}).mappings().all()
    current = next((open_value(tx, r) for r in newest if r["closed_at"] is None), None)
    latest = next((closed_value(tx, r) for r in newest if r["closed_at"] is not None), None)
    return TaskRecord(
        definition=TaskDefinition.model_validate_json(row["definition"]),
        digest=row["digest"],
        status=TaskStatus(row["status"]),
        reason=row["reason"],
        revision=row["revision"],
        open_round=current,
        latest=latest,
    )
