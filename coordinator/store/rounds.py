"""Rows of the rounds table as values, and changes to them within the caller's transaction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, RowMapping, bindparam, delete, insert, select, update

from coordinator.consensus import Agreement
from coordinator.round_engine import ClosedBy, Round
from coordinator.store.actors import Actor
from coordinator.store.audit import Act, record
from coordinator.store.records import ClosedRound
from coordinator.store.schema import ballots, in_order, revisions, rounds, tasks
from wire.task.definition import TaskDefinition, TaskStatus


@dataclass(frozen=True)
class DroppedBallot:
    """A ballot taken out of an open round."""

    task: str
    round: int
    silo: str
    digest: str


def next_revision(tx: Connection) -> int:
    """A number that is larger than every one before: silos resume their watch by it."""
    tx.execute(update(revisions).values(value=revisions.c.value + 1))
    value: int = tx.execute(select(revisions.c.value)).scalar_one()
    return value


def insert_round(tx: Connection, fresh: Round) -> None:
    """Opens a round."""
    tx.execute(
        insert(rounds).values(
            task=fresh.task,
            number=fresh.number,
            opened_at=fresh.opened_at,
            closes_at=fresh.closes_at,
            expected=sorted(fresh.expected),
        )
    )


def update_round(tx: Connection, task: str, round_number: int, **values: object) -> None:
    """Changes columns of one round."""
    tx.execute(
        update(rounds)
        .where(rounds.c.task == task, rounds.c.number == round_number)
        .values(**values)
    )


def open_value(tx: Connection, row: RowMapping) -> Round:
    """An open round with the votes stored so far."""
    return Round(
        task=row["task"],
        number=row["number"],
        opened_at=row["opened_at"],
        closes_at=row["closes_at"],
        expected=frozenset(row["expected"]),
        voted=frozenset(_voted(tx, row["task"], row["number"])),
        quorum_at=row["quorum_at"],
        extensions=row["extensions"],
        closing=ClosedBy(row["closing"]) if row["closing"] else None,
    )


def closed_value(tx: Connection, row: RowMapping) -> ClosedRound:
    """A closed round without its bits."""
    return ClosedRound(
        number=row["number"],
        opened_at=row["opened_at"],
        closed_at=row["closed_at"],
        closed_by=ClosedBy(row["closing"]),
        digest=row["consensus_digest"],
        size_bytes=row["consensus_bytes"],
        changed_rows=row["changed_rows"],
        abstained_rows=row["abstained_rows"],
        ballots=row["ballots"],
        voted=_voted(tx, row["task"], row["number"]),
        agreement=agreement_from_json(row["agreement"]),
    )


def agreement_to_json(agreement: Mapping[str, Agreement]) -> dict[str, list[int]] | None:
    """As the column holds it: compared and agreeing rows by silo; NULL if nobody was compared."""
    return {silo: [found.compared, found.same] for silo, found in agreement.items()} or None


def agreement_from_json(column: Mapping[str, list[int]] | None) -> dict[str, Agreement]:
    """How far each silo agreed, by name."""
    return {silo: Agreement(*rows) for silo, rows in sorted((column or {}).items())}


def leave_open_rounds(tx: Connection, silo: str, *, drop_ballots: bool) -> list[DroppedBallot]:
    """No open round expects `silo` any longer; its ballots there stay, or are deleted and returned.

    The silo's row is locked, so that no round which expects it can be opened meanwhile.
    """
    started = tasks.c.status.in_([TaskStatus.RUNNING, TaskStatus.PAUSED])
    # All tasks before the first change: see the order of locks in `engine`.
    locked = select(tasks.c.name).where(started).order_by(in_order(tasks.c.name)).with_for_update()
    names = tx.execute(locked).scalars().all()
    open_rounds = select(rounds, tasks.c.definition).join(tasks, tasks.c.name == rounds.c.task)
    query = open_rounds.where(
        rounds.c.task.in_(names), rounds.c.closed_at.is_(None), rounds.c.closing.is_(None)
    )
    dropped: list[DroppedBallot] = []
    for row in tx.execute(query).mappings().all():
        current = open_value(tx, row)
        if silo not in current.expected:
            continue
        voted = current.voted
        if drop_ballots and silo in voted:
            dropped.append(_drop_ballot(tx, current, silo))
            voted -= {silo}
        quorum = TaskDefinition.model_validate_json(row["definition"]).rounds.quorum
        update_round(
            tx,
            current.task,
            current.number,
            expected=sorted(current.expected if silo in voted else current.expected - {silo}),
            quorum_at=current.quorum_at if len(voted) >= quorum else None,
        )
        changed = update(tasks).where(tasks.c.name == current.task)
        tx.execute(changed.values(revision=next_revision(tx)))
    return dropped


def record_dropped(
    tx: Connection, now: datetime, by: Actor, dropped: Iterable[DroppedBallot]
) -> None:
    """One entry of the audit chain for each ballot that was taken out."""
    for ballot in dropped:
        record(
            tx,
            now,
            by,
            Act.BALLOT_DROPPED,
            f"task/{ballot.task}",
            round=ballot.round,
            silo=ballot.silo,
            digest=ballot.digest,
        )


def _drop_ballot(tx: Connection, current: Round, silo: str) -> DroppedBallot:
    mine = (
        (ballots.c.task == current.task)
        & (ballots.c.round == current.number)
        & (ballots.c.silo == silo)
    )
    digest: str = tx.execute(select(ballots.c.digest).where(mine)).scalar_one()
    tx.execute(delete(ballots).where(mine))
    return DroppedBallot(current.task, current.number, silo, digest)


# Asked with every ballot, hence built once.
_VOTED = (
    select(ballots.c.silo)
    .where(ballots.c.task == bindparam("task"), ballots.c.round == bindparam("round"))
    .order_by(in_order(ballots.c.silo))
)


def _voted(tx: Connection, task: str, round_number: int) -> tuple[str, ...]:
    return tuple(tx.execute(_VOTED, {"task": task, "round": round_number}).scalars())
