"""Accepted ballots: stored before their receipt, exactly one per task, round and silo."""

from __future__ import annotations

from collections.abc import Iterator

from sqlalchemy import Connection, Engine, insert, select

from coordinator.rounds import admit_ballot
from coordinator.store.audit import Act, record
from coordinator.store.records import BallotRecord
from coordinator.store.rounds import update_round
from coordinator.store.schema import ballots, in_order
from coordinator.store.silos import keep_standing
from coordinator.store.tasks import get_task
from wire.crash_points import crash_point
from wire.errors import BALLOT_CONFLICT, RECEIPT_UNKNOWN, TASK_NOT_RUNNING, Refusal
from wire.task import TaskStatus


class BallotStore:
    """Each method is one transaction."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def accept(self, ballot: BallotRecord, payload: bytes) -> BallotRecord:
        """Stores a checked and signed ballot, or raises the refusal it deserves.

        The same ballot again gives the first record, even after the round has closed; a different one by
        the same silo is a conflict, whatever the state of the round.
        """
        task, number, silo = ballot.task, ballot.round, ballot.silo
        with self._engine.begin() as tx:
            keep_standing(tx, silo)
            known = get_task(tx, task, lock=True)
            held = _held(tx, task, number, silo)
            if held is not None:
                if held.digest != ballot.digest:
                    raise Refusal(BALLOT_CONFLICT, name=silo, task=task, round=number)
                return held
            current = known.open_round
            admit_ballot(current, task, number, silo)
            if known.status is not TaskStatus.RUNNING:
                raise Refusal(TASK_NOT_RUNNING, task=task, status=known.status)
            tx.execute(
                insert(ballots).values(
                    task=task,
                    round=number,
                    silo=silo,
                    digest=ballot.digest,
                    payload=payload,
                    accepted_at=ballot.accepted_at,
                    signer=ballot.signer,
                    signature=ballot.signature,
                )
            )
            votes = len(current.voted) + 1 if current else 0
            if votes == known.definition.rounds.quorum:
                update_round(tx, task, number, quorum_at=ballot.accepted_at)
            record(
                tx,
                ballot.accepted_at,
                f"silo/{silo}",
                Act.BALLOT_ACCEPTED,
                f"task/{task}",
                round=number,
                digest=ballot.digest,
                bytes=len(payload),
            )
            crash_point("ballot-accepting")
            return ballot

    def held(self, task: str, number: int, silo: str) -> BallotRecord:
        """A silo's stored ballot without its bits, or RECEIPT_UNKNOWN."""
        with self._engine.begin() as tx:
            ballot = _held(tx, task, number, silo)
        if ballot is None:
            raise Refusal(RECEIPT_UNKNOWN, name=silo, task=task, round=number)
        return ballot

    def payloads(self, task: str, number: int) -> Iterator[tuple[str, bytes]]:
        """Each silo's ballot in turn, by name; at most one is held in memory."""
        mine = (ballots.c.task == task) & (ballots.c.round == number)
        with self._engine.begin() as tx:
            query = select(ballots.c.silo).where(mine).order_by(in_order(ballots.c.silo))
            names = list(tx.execute(query).scalars())
        for name in names:
            with self._engine.begin() as tx:
                ballot = select(ballots.c.payload).where(mine, ballots.c.silo == name)
                payload: bytes = tx.execute(ballot).scalar_one()
            yield name, payload


def _held(tx: Connection, task: str, number: int, silo: str) -> BallotRecord | None:
    columns = [column for column in ballots.c if column.name != "payload"]
    query = select(*columns).where(
        ballots.c.task == task, ballots.c.round == number, ballots.c.silo == silo
    )
    row = tx.execute(query).mappings().first()
    return None if row is None else BallotRecord(**row, already_held=True)
