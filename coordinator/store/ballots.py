"""Accepted ballots: stored before their receipt, exactly one per task, round and silo."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from sqlalchemy import Engine, insert, select, update

from coordinator.rounds import admit_ballot
from coordinator.store.records import BallotRecord
from coordinator.store.schema import ballots, rounds
from coordinator.store.tasks import get_task
from wire.errors import BALLOT_CONFLICT, TASK_NOT_RUNNING, Refusal
from wire.task import TaskStatus


class BallotStore:
    """Each method is one transaction."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def accept(
        self, task: str, number: int, silo: str, digest: str, payload: bytes, now: datetime
    ) -> BallotRecord:
        """Stores a checked ballot, or raises the refusal it deserves.

        The same ballot again gives the same record, even after the round has closed; a different one by
        the same silo is a conflict, whatever the state of the round.
        """
        with self._engine.begin() as tx:
            record = get_task(tx, task, lock=True)
            held = tx.execute(
                select(ballots.c.digest, ballots.c.accepted_at).where(
                    ballots.c.task == task, ballots.c.round == number, ballots.c.silo == silo
                )
            ).first()
            if held is not None:
                if held.digest != digest:
                    raise Refusal(BALLOT_CONFLICT, name=silo, task=task, round=number)
                return BallotRecord(task, number, silo, digest, held.accepted_at, already_held=True)
            current = record.open_round
            admit_ballot(current, task, number, silo)
            if record.status is not TaskStatus.RUNNING:
                raise Refusal(TASK_NOT_RUNNING, task=task, status=record.status)
            tx.execute(
                insert(ballots).values(
                    task=task,
                    round=number,
                    silo=silo,
                    digest=digest,
                    payload=payload,
                    accepted_at=now,
                )
            )
            votes = len(current.voted) + 1 if current else 0
            if votes == record.definition.rounds.quorum:
                tx.execute(
                    update(rounds)
                    .where(rounds.c.task == task, rounds.c.number == number)
                    .values(quorum_at=now)
                )
            return BallotRecord(task, number, silo, digest, now, already_held=False)

    def payloads(self, task: str, number: int) -> Iterator[tuple[str, bytes]]:
        """Each silo's ballot in turn, by name; at most one is held in memory."""
        mine = (ballots.c.task == task) & (ballots.c.round == number)
        with self._engine.begin() as tx:
            names = list(
                tx.execute(select(ballots.c.silo).where(mine).order_by(ballots.c.silo)).scalars()
            )
        for name in names:
            with self._engine.begin() as tx:
                query = select(ballots.c.payload).where(mine, ballots.c.silo == name)
                payload: bytes = tx.execute(query).scalar_one()
            yield name, payload
