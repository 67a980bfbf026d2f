"""What closed rounds published: their history, their consensus, how far silos agreed with it."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Engine, func, select

from coordinator.store.engine import snapshot
from coordinator.store.records import ClosedRound, TaskAgreement
from coordinator.store.rounds import agreement_from_json, closed_value
from coordinator.store.schema import in_order, rounds, tasks
from wire.errors import CONSENSUS_UNKNOWN, Refusal
from wire.task.definition import TaskStatus

WITHOUT_BITS = [column for column in rounds.c if column.name != "consensus"]
"""Every column but the bits: a state is read far more often than a consensus is fetched."""
_COMPARED_TASKS = 100


class ClosedRoundReader:
    """Each method is one transaction that only reads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def history(self, name: str) -> list[ClosedRound]:
        """The closed rounds of a task, oldest first."""
        query = (
            select(*WITHOUT_BITS)
            .where(rounds.c.task == name, rounds.c.closed_at.is_not(None))
            .order_by(rounds.c.number)
        )
        with snapshot(self._engine) as tx:
            return [closed_value(tx, row) for row in tx.execute(query).mappings().all()]

    def recent_changes(self, name: str, last: int) -> list[int]:
        """Changed rows of the `last` closed rounds at most, oldest first."""
        query = (
            select(rounds.c.changed_rows)
            .where(rounds.c.task == name, rounds.c.closed_at.is_not(None))
            .order_by(rounds.c.number.desc())
            .limit(last)
        )
        with snapshot(self._engine) as tx:
            return list(tx.execute(query).scalars())[::-1]

    def agreements(self, ended_since: datetime) -> list[TaskAgreement]:
        """How far silos agree with the latest consensus of tasks that run or ended since then, by name.

        Of the hundred whose rounds closed last, should there be more.
        """
        last = (
            select(rounds.c.task, func.max(rounds.c.number).label("number"))
            .where(rounds.c.closed_at.is_not(None))
            .group_by(rounds.c.task)
            .subquery()
        )
        watched = (tasks.c.status == TaskStatus.RUNNING) | (
            (tasks.c.status == TaskStatus.FINISHED) & (rounds.c.closed_at >= ended_since)
        )
        query = (
            select(rounds.c.task, rounds.c.agreement)
            .join(last, (last.c.task == rounds.c.task) & (last.c.number == rounds.c.number))
            .join(tasks, tasks.c.name == rounds.c.task)
            .where(watched, rounds.c.agreement.is_not(None))
            .order_by(rounds.c.closed_at.desc(), in_order(rounds.c.task))
            .limit(_COMPARED_TASKS)
        )
        with snapshot(self._engine) as tx:
            found = [
                TaskAgreement(name, agreement_from_json(column))
                for name, column in tx.execute(query)
            ]
        return sorted(found, key=lambda compared: compared.task)

    def consensus(self, name: str, round_number: int = 0) -> tuple[ClosedRound, bytes]:
        """The consensus of a round, 0 for the latest: its record and its packed labels."""
        query = (
            select(rounds)
            .where(rounds.c.task == name, rounds.c.closed_at.is_not(None))
            .order_by(rounds.c.number.desc())
        )
        if round_number:
            query = query.where(rounds.c.number == round_number)
        with snapshot(self._engine) as tx:
            row = tx.execute(query.limit(1)).mappings().first()
            if row is None:
                raise Refusal(CONSENSUS_UNKNOWN, task=name, round=round_number or "any")
            return closed_value(tx, row), row["consensus"]
