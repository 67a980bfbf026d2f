"""Tasks and their rounds. Every change of state is one transaction here, guarded by the state it expects."""

from __future__ import annotations

from datetime import datetime
from typing import assert_never

from sqlalchemy import Connection, select, update

from coordinator.round_engine import ClosedBy, Round, open_round
from coordinator.store.actors import COORDINATOR, Actor
from coordinator.store.audit import Act, record
from coordinator.store.closed_rounds import ClosedRoundReader
from coordinator.store.engine import insert_new, snapshot
from coordinator.store.extractors import resolved_extractor
from coordinator.store.party_releases import enter_release
from coordinator.store.public_sets import find_public_set
from coordinator.store.records import Consensus, TaskRecord
from coordinator.store.rounds import (
    agreement_to_json,
    insert_round,
    next_revision,
    update_round,
)
from coordinator.store.schema import in_order, silos, tasks
from coordinator.store.silos import active_silos
from coordinator.store.standing import acting
from coordinator.store.task_rows import get_task, task_value
from wire.errors import (
    TASK_EXISTS,
    TASK_NAMES_STRANGERS,
    TASK_NOT_RUNNING,
    TOO_FEW_SILOS,
    Refusal,
)
from wire.runtime.crash_points import crash_point
from wire.task.definition import TaskDefinition, TaskStatus


class TaskStore(ClosedRoundReader):
    """Each method is one transaction."""

    def create(self, definition: TaskDefinition, now: datetime, by: Actor) -> TaskRecord:
        """Stores a definition, public set and extractor resolved; the same definition again is no error."""
        with acting(self._engine, by) as tx:
            public = find_public_set(tx, definition.public_set)
            resolved = definition.model_copy(
                update={
                    "public_set": public.digest,
                    "rows": public.rows,
                    "extractor": resolved_extractor(tx, definition.extractor, public),
                }
            )
            fresh = insert_new(
                tx,
                tasks,
                name=resolved.name,
                digest=resolved.digest,
                definition=resolved.canonical(),
                status=TaskStatus.DRAFT,
                reason="",
                revision=0,
                created_at=now,
            )
            if fresh:
                _update_task(tx, resolved.name)
                subject, digest = f"task/{resolved.name}", resolved.digest
                record(tx, now, by, Act.TASK_CREATED, subject, digest=digest)
                crash_point("task-creating")
            held = get_task(tx, resolved.name)
            if held.digest != resolved.digest:
                raise Refusal(TASK_EXISTS, task=resolved.name)
            return held

    def start(self, name: str, now: datetime, by: Actor) -> TaskRecord:
        """Opens the first round of a draft, or the interrupted round of a paused task anew.

        Whom its definition gives classes or weights must be registered by now: a misspelt name would quietly
        count as any other.
        """
        with acting(self._engine, by) as tx:
            active = active_silos(tx)
            task = get_task(tx, name, lock=True)
            match task.status:
                case TaskStatus.FINISHED:
                    raise Refusal(TASK_NOT_RUNNING, task=name, status=task.status)
                case TaskStatus.RUNNING:
                    return task
                case TaskStatus.DRAFT | TaskStatus.PAUSED:
                    pass
                case unknown:
                    assert_never(unknown)
            _require_registered(tx, task.definition)
            expected = _participants(active, task)
            quorum = task.definition.rounds.quorum
            if len(expected) < quorum:
                raise Refusal(TOO_FEW_SILOS, task=name, quorum=quorum, active=len(expected))
            round_number = task.open_round.number if task.open_round else 1
            fresh = open_round(name, round_number, task.definition.rounds, expected, now)
            if task.open_round is None:
                insert_round(tx, fresh)
            else:
                update_round(
                    tx,
                    name,
                    round_number,
                    closes_at=fresh.closes_at,
                    expected=expected,
                    extensions=0,
                )
            _update_task(tx, name, status=TaskStatus.RUNNING, reason="")
            record(tx, now, by, Act.TASK_STARTED, f"task/{name}", round=round_number)
            crash_point("task-starting")
            return get_task(tx, name)

    def pause(self, name: str, reason: str, now: datetime, by: Actor) -> TaskRecord:
        """Pauses a running task; its open round takes no ballots. One that stalled counts as paused by an admin from now on."""
        with acting(self._engine, by) as tx:
            task = get_task(tx, name, lock=True)
            if task.open_round is not None and task.stalled:
                most = task.definition.rounds.max_extensions
                update_round(tx, name, task.open_round.number, extensions=most)
            elif task.status is not TaskStatus.RUNNING:
                raise Refusal(TASK_NOT_RUNNING, task=name, status=task.status)
            _update_task(tx, name, status=TaskStatus.PAUSED, reason=reason)
            record(tx, now, by, Act.TASK_PAUSED, f"task/{name}", reason=reason)
            return get_task(tx, name)

    def stall(self, current: Round, reason: str, now: datetime) -> bool:
        """Pauses a task whose round stayed below its quorum; False if it is no longer as `current` says.

        One extension more than allowed is counted, by which `TaskRecord.stalled` knows.
        """
        with acting(self._engine, COORDINATOR) as tx:
            task = get_task(tx, current.task, lock=True)
            if not _unchanged_since(task, current):
                return False
            beyond = task.definition.rounds.max_extensions + 1
            update_round(tx, current.task, current.number, extensions=beyond)
            _update_task(tx, current.task, status=TaskStatus.PAUSED, reason=reason)
            record(tx, now, COORDINATOR, Act.TASK_PAUSED, f"task/{current.task}", reason=reason)
            return True

    def extend(self, current: Round, closes_at: datetime, now: datetime) -> bool:
        """Moves the deadline of a round below its quorum; False if it is no longer as `current` says."""
        with acting(self._engine, COORDINATOR) as tx:
            if not _unchanged_since(get_task(tx, current.task, lock=True), current):
                return False
            update_round(
                tx,
                current.task,
                current.number,
                closes_at=closes_at,
                extensions=current.extensions + 1,
            )
            _update_task(tx, current.task)
            subject = f"task/{current.task}"
            record(tx, now, COORDINATOR, Act.ROUND_EXTENDED, subject, round=current.number)
            return True

    def begin_close(self, current: Round, by: ClosedBy) -> bool:
        """Takes no more ballots in this round; False if it was closed already or the task is paused."""
        with acting(self._engine, COORDINATOR) as tx:
            task = get_task(tx, current.task, lock=True)
            if task.open_round is None or task.open_round.number != current.number:
                return False
            if task.status is not TaskStatus.RUNNING:
                return False
            if task.open_round.closing is None:
                update_round(tx, current.task, current.number, closing=by)
            return True

    def publish(
        self, current: Round, consensus: Consensus, now: datetime, finished: str = ""
    ) -> TaskRecord:
        """Closes a round with its consensus and, in the same transaction, opens the next or ends the task.

        `finished` is the reason the task ends, or empty if it goes on. Publishing a closed round again
        changes nothing, and neither does publishing one that still takes ballots. A noisy consensus is never
        published unrecorded: its release is entered in this transaction, and how far silos agree with it,
        which would undo the noise, is not stored.
        """
        with acting(self._engine, COORDINATOR) as tx:
            active = active_silos(tx)
            task = get_task(tx, current.task, lock=True)
            if task.open_round is None or task.open_round.number != current.number:
                return task
            if task.open_round.closing is None:
                return task
            update_round(
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
                agreement=agreement_to_json({} if consensus.release else consensus.agreement),
            )
            if finished:
                _update_task(tx, current.task, status=TaskStatus.FINISHED, reason=finished)
            else:
                expected = _participants(active, task)
                insert_round(
                    tx,
                    open_round(
                        current.task, current.number + 1, task.definition.rounds, expected, now
                    ),
                )
                _update_task(tx, current.task)
            noise: dict[str, int] = {}
            if consensus.release is not None:
                enter_release(tx, current.task, current.number, now, consensus.release)
                noise = consensus.release.audit_details()
            record(
                tx,
                now,
                COORDINATOR,
                Act.CONSENSUS_PUBLISHED,
                f"task/{current.task}",
                round=current.number,
                digest=consensus.digest,
                ballots=consensus.ballots,
                **noise,
            )
            crash_point("consensus-publishing")
            return get_task(tx, current.task)

    def all(self) -> list[TaskRecord]:
        """Every task by name."""
        query = select(tasks).order_by(in_order(tasks.c.name))
        with snapshot(self._engine) as tx:
            return [task_value(tx, row) for row in tx.execute(query).mappings().all()]

    def running(self) -> list[TaskRecord]:
        """Every task that runs, by name; asked with every ballot, so that ended tasks must cost nothing."""
        query = select(tasks).where(tasks.c.status == TaskStatus.RUNNING)
        with snapshot(self._engine) as tx:
            rows = tx.execute(query.order_by(in_order(tasks.c.name))).mappings().all()
            return [task_value(tx, row) for row in rows]

    def get(self, name: str) -> TaskRecord:
        """One task, or TASK_UNKNOWN."""
        with snapshot(self._engine) as tx:
            return get_task(tx, name)

    def changed_since(self, revision: int) -> list[TaskRecord]:
        """Started tasks that changed after `revision`, oldest change first."""
        query = (
            select(tasks)
            .where(tasks.c.revision > revision, tasks.c.status != TaskStatus.DRAFT)
            .order_by(tasks.c.revision)
        )
        with snapshot(self._engine) as tx:
            return [task_value(tx, row) for row in tx.execute(query).mappings().all()]


def _unchanged_since(task: TaskRecord, current: Round) -> bool:
    """True if the task runs and its round is below the quorum with the same deadline as `current`."""
    return (
        task.status is TaskStatus.RUNNING
        and task.open_round is not None
        and task.open_round.closing is None
        and task.open_round.quorum_at is None
        and (task.open_round.number, task.open_round.closes_at)
        == (current.number, current.closes_at)
    )


def _require_registered(tx: Connection, definition: TaskDefinition) -> None:
    named = {*definition.label_spaces, *definition.consensus.weights}
    known = set(tx.execute(select(silos.c.name)).scalars()) if named else set()
    if named - known:
        strangers = ", ".join(sorted(named - known))
        raise Refusal(TASK_NAMES_STRANGERS, task=definition.name, names=strangers)


def _participants(active: list[str], task: TaskRecord) -> list[str]:
    return [name for name in active if task.invites(name)]


def _update_task(tx: Connection, name: str, **values: object) -> None:
    tx.execute(
        update(tasks).where(tasks.c.name == name).values(revision=next_revision(tx), **values)
    )
