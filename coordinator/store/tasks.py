"""Tasks and their rounds. Every change of state is one transaction here, guarded by the state it expects."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import Connection, Engine, RowMapping, insert, select, update

from coordinator.rounds import ClosedBy, Round, open_round
from coordinator.store.public_sets import find_public_set
from coordinator.store.records import ClosedRound, Consensus, TaskRecord
from coordinator.store.schema import ballots, revisions, rounds, tasks
from coordinator.store.silos import active_silos
from wire.errors import (
    CONSENSUS_UNKNOWN,
    TASK_EXISTS,
    TASK_NOT_RUNNING,
    TASK_UNKNOWN,
    TOO_FEW_SILOS,
    Refusal,
)
from wire.task import TaskDefinition, TaskStatus


class TaskStore:
    """Each method is one transaction."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def create(self, definition: TaskDefinition, now: datetime) -> TaskRecord:
        """Stores a definition with its public set resolved; the same definition again is no error."""
        with self._engine.begin() as tx:
            public = find_public_set(tx, definition.public_set)
            resolved = definition.model_copy(
                update={"public_set": public.digest, "rows": public.rows}
            )
            held = tx.execute(select(tasks).where(tasks.c.name == resolved.name)).mappings().first()
            if held is not None:
                if held["digest"] != resolved.digest:
                    raise Refusal(TASK_EXISTS, task=resolved.name)
                return _record(tx, held)
            tx.execute(
                insert(tasks).values(
                    name=resolved.name,
                    digest=resolved.digest,
                    definition=resolved.canonical(),
                    status=TaskStatus.DRAFT,
                    revision=_next_revision(tx),
                    created_at=now,
                )
            )
            return get_task(tx, resolved.name)

    def start(self, name: str, now: datetime) -> TaskRecord:
        """Opens the first round of a draft, or the interrupted round of a paused task anew."""
        with self._engine.begin() as tx:
            task = get_task(tx, name, lock=True)
            if task.status is TaskStatus.FINISHED:
                raise Refusal(TASK_NOT_RUNNING, task=name, status=task.status)
            if task.status is TaskStatus.RUNNING:
                return task
            expected = _participants(tx, task.definition)
            quorum = task.definition.rounds.quorum
            if len(expected) < quorum:
                raise Refusal(TOO_FEW_SILOS, task=name, quorum=quorum, active=len(expected))
            number = task.open_round.number if task.open_round else 1
            fresh = open_round(name, number, task.definition.rounds, expected, now)
            if task.open_round is None:
                _insert_round(tx, fresh)
            else:
                _update_round(
                    tx, name, number, closes_at=fresh.closes_at, expected=expected, extensions=0
                )
            _update_task(tx, name, status=TaskStatus.RUNNING, reason="")
            return get_task(tx, name)

    def pause(self, name: str, reason: str) -> TaskRecord:
        """Holds a running task; its open round takes no ballots."""
        with self._engine.begin() as tx:
            task = get_task(tx, name, lock=True)
            if task.status is not TaskStatus.RUNNING:
                raise Refusal(TASK_NOT_RUNNING, task=name, status=task.status)
            _update_task(tx, name, status=TaskStatus.PAUSED, reason=reason)
            return get_task(tx, name)

    def extend(self, current: Round, closes_at: datetime) -> None:
        """Moves the deadline of a round below its quorum."""
        with self._engine.begin() as tx:
            get_task(tx, current.task, lock=True)
            _update_round(
                tx,
                current.task,
                current.number,
                closes_at=closes_at,
                extensions=current.extensions + 1,
            )
            _update_task(tx, current.task)

    def begin_close(self, current: Round, by: ClosedBy) -> bool:
        """Takes no more ballots in this round; False if it was closed already."""
        with self._engine.begin() as tx:
            task = get_task(tx, current.task, lock=True)
            if task.open_round is None or task.open_round.number != current.number:
                return False
            if task.open_round.closing is None:
                _update_round(tx, current.task, current.number, closing=by)
            return True

    def publish(
        self, current: Round, consensus: Consensus, now: datetime, finished: str = ""
    ) -> TaskRecord:
        """Closes a round with its consensus and, in the same breath, opens the next or ends the task.

        `finished` is the reason the task ends, or empty if it goes on. Publishing a closed round again
        changes nothing.
        """
        with self._engine.begin() as tx:
            task = get_task(tx, current.task, lock=True)
            if task.open_round is None or task.open_round.number != current.number:
                return task
            _update_round(
                tx,
                current.task,
                current.number,
                closed_at=now,
                ballots=consensus.ballots,
                consensus=consensus.payload,
                consensus_digest=consensus.digest,
                consensus_bytes=len(consensus.payload),
                changed_rows=consensus.changed_rows,
                abstained_rows=consensus.abstained_rows,
            )
            if finished:
                _update_task(tx, current.task, status=TaskStatus.FINISHED, reason=finished)
            else:
                expected = _participants(tx, task.definition)
                _insert_round(
                    tx,
                    open_round(
                        current.task, current.number + 1, task.definition.rounds, expected, now
                    ),
                )
                _update_task(tx, current.task)
            return get_task(tx, current.task)

    def all(self) -> list[TaskRecord]:
        """Every task by name."""
        with self._engine.begin() as tx:
            return [
                _record(tx, row)
                for row in tx.execute(select(tasks).order_by(tasks.c.name)).mappings()
            ]

    def get(self, name: str) -> TaskRecord:
        """One task, or TASK_UNKNOWN."""
        with self._engine.begin() as tx:
            return get_task(tx, name)

    def changed_since(self, revision: int) -> list[TaskRecord]:
        """Started tasks a silo has not heard of since `revision`, oldest change first."""
        query = (
            select(tasks)
            .where(tasks.c.revision > revision, tasks.c.status != TaskStatus.DRAFT)
            .order_by(tasks.c.revision)
        )
        with self._engine.begin() as tx:
            return [_record(tx, row) for row in tx.execute(query).mappings()]

    def history(self, name: str) -> list[ClosedRound]:
        """The closed rounds of a task, oldest first."""
        query = (
            select(rounds)
            .where(rounds.c.task == name, rounds.c.closed_at.is_not(None))
            .order_by(rounds.c.number)
        )
        with self._engine.begin() as tx:
            return [_closed(tx, row) for row in tx.execute(query).mappings()]

    def consensus(self, name: str, number: int = 0) -> tuple[ClosedRound, bytes]:
        """The consensus of a round, 0 for the latest: its record and its packed labels."""
        query = (
            select(rounds)
            .where(rounds.c.task == name, rounds.c.closed_at.is_not(None))
            .order_by(rounds.c.number.desc())
        )
        if number:
            query = query.where(rounds.c.number == number)
        with self._engine.begin() as tx:
            row = tx.execute(query.limit(1)).mappings().first()
            if row is None:
                raise Refusal(CONSENSUS_UNKNOWN, task=name, round=number or "any")
            return _closed(tx, row), row["consensus"]


def get_task(tx: Connection, name: str, *, lock: bool = False) -> TaskRecord:
    """One task within a transaction; `lock` keeps other replicas out until it ends."""
    query = select(tasks).where(tasks.c.name == name)
    row = tx.execute(query.with_for_update() if lock else query).mappings().first()
    if row is None:
        raise Refusal(TASK_UNKNOWN, task=name)
    return _record(tx, row)


def _participants(tx: Connection, definition: TaskDefinition) -> list[str]:
    active = active_silos(tx)
    return [name for name in active if not definition.silos or name in definition.silos]


def _next_revision(tx: Connection) -> int:
    tx.execute(update(revisions).values(value=revisions.c.value + 1))
    value: int = tx.execute(select(revisions.c.value)).scalar_one()
    return value


def _update_task(tx: Connection, name: str, **values: object) -> None:
    tx.execute(
        update(tasks).where(tasks.c.name == name).values(revision=_next_revision(tx), **values)
    )


def _insert_round(tx: Connection, fresh: Round) -> None:
    tx.execute(
        insert(rounds).values(
            task=fresh.task,
            number=fresh.number,
            opened_at=fresh.opened_at,
            closes_at=fresh.closes_at,
            expected=sorted(fresh.expected),
        )
    )


def _update_round(tx: Connection, task: str, number: int, **values: object) -> None:
    tx.execute(
        update(rounds).where(rounds.c.task == task, rounds.c.number == number).values(**values)
    )


def _voted(tx: Connection, task: str, number: int) -> tuple[str, ...]:
    query = select(ballots.c.silo).where(ballots.c.task == task, ballots.c.round == number)
    return tuple(tx.execute(query.order_by(ballots.c.silo)).scalars())


def _record(tx: Connection, row: RowMapping) -> TaskRecord:
    name: str = row["name"]
    # Everything but the bits: a state is read far more often than a consensus is fetched.
    columns = [column for column in rounds.c if column.name != "consensus"]
    newest = (
        tx.execute(
            select(*columns).where(rounds.c.task == name).order_by(rounds.c.number.desc()).limit(2)
        )
        .mappings()
        .all()
    )
    current = next((_open(tx, r) for r in newest if r["closed_at"] is None), None)
    latest = next((_closed(tx, r) for r in newest if r["closed_at"] is not None), None)
    return TaskRecord(
        definition=TaskDefinition.model_validate_json(row["definition"]),
        digest=row["digest"],
        status=TaskStatus(row["status"]),
        reason=row["reason"],
        revision=row["revision"],
        open_round=current,
        latest=latest,
    )


def _open(tx: Connection, row: RowMapping) -> Round:
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


def _closed(tx: Connection, row: RowMapping) -> ClosedRound:
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
    )
