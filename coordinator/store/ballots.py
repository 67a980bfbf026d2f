"""Accepted ballots: stored before their receipt, exactly one per task, round and silo."""

from __future__ import annotations

from typing import Any

from google.protobuf.json_format import MessageToDict, ParseDict
from sqlalchemy import Connection, Engine, bindparam, func, insert, select

from coordinator.round_engine import admit_ballot
from coordinator.store.actors import Caller
from coordinator.store.audit import Act, record
from coordinator.store.engine import snapshot
from coordinator.store.records import BallotRecord, SiloDeclaration
from coordinator.store.rounds import update_round
from coordinator.store.schema import ballots, in_order
from coordinator.store.standing import acting
from coordinator.store.task_rows import get_voting_state
from wire.consilium.v1 import privacy_pb2
from wire.errors import BALLOT_CONFLICT, RECEIPT_UNKNOWN, TASK_NOT_RUNNING, Refusal
from wire.privacy.declaration import Declaration
from wire.runtime.crash_points import crash_point
from wire.task.definition import TaskStatus

# Asked with every ballot, hence built once.
_THIS = (
    (ballots.c.task == bindparam("task"))
    & (ballots.c.round == bindparam("round"))
    & (ballots.c.silo == bindparam("silo"))
)
_PAYLOAD = select(ballots.c.payload).where(_THIS)
_HELD = select(*(one for one in ballots.c if one.name != "payload")).where(_THIS)
_INSERT = insert(ballots)


class BallotStore:
    """Each method is one transaction."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def accept(self, by: Caller, ballot: BallotRecord, payload: bytes) -> BallotRecord:
        """Stores a checked and signed ballot of the caller, or raises the refusal it deserves.

        The same ballot again gives the first record with what was declared then, even after the round has
        closed; a different one by the same silo is a conflict, whatever the state of the round.
        """
        task, round_number, silo = ballot.task, ballot.round, ballot.silo
        with acting(self._engine, by) as tx:
            state = get_voting_state(tx, task)
            held = _held(tx, task, round_number, silo)
            if held is not None:
                if held.digest != ballot.digest:
                    raise Refusal(BALLOT_CONFLICT, name=silo, task=task, round=round_number)
                return held
            current = state.open_round
            admit_ballot(current, task, round_number, silo)
            if state.status is not TaskStatus.RUNNING:
                raise Refusal(TASK_NOT_RUNNING, task=task, status=state.status)
            tx.execute(
                _INSERT,
                {
                    "task": task,
                    "round": round_number,
                    "silo": silo,
                    "digest": ballot.digest,
                    "payload": payload,
                    "accepted_at": ballot.accepted_at,
                    "signer": ballot.signer,
                    "signature": ballot.signature,
                    "privacy": _declaration_to_json(ballot.declaration),
                    "consensuses_seen": list(ballot.consensuses_seen) or None,
                },
            )
            votes = len(current.voted) + 1 if current else 0
            if votes == state.quorum:
                update_round(tx, task, round_number, quorum_at=ballot.accepted_at)
            record(
                tx,
                ballot.accepted_at,
                by,
                Act.BALLOT_ACCEPTED,
                f"task/{task}",
                round=round_number,
                digest=ballot.digest,
                bytes=len(payload),
                **_audit_details(ballot),
            )
            crash_point("ballot-accepting")
            return ballot

    def held(self, task: str, round_number: int, silo: str) -> BallotRecord:
        """A silo's stored ballot without its bits, or RECEIPT_UNKNOWN."""
        with snapshot(self._engine) as tx:
            ballot = _held(tx, task, round_number, silo)
        if ballot is None:
            raise Refusal(RECEIPT_UNKNOWN, name=silo, task=task, round=round_number)
        return ballot

    def payload(self, task: str, round_number: int, silo: str) -> bytes:
        """One silo's bits, which must be there."""
        with snapshot(self._engine) as tx:
            payload: bytes = tx.execute(_PAYLOAD, _key(task, round_number, silo)).scalar_one()
        return payload

    def declarations(self, task: str, round_number: int) -> dict[str, Declaration]:
        """What each silo declared of its ballot in a round, by name: one entry for every stored ballot."""
        query = (
            select(ballots.c.silo, ballots.c.privacy)
            .where(ballots.c.task == task, ballots.c.round == round_number)
            .order_by(in_order(ballots.c.silo))
        )
        with snapshot(self._engine) as tx:
            return {silo: _declaration_from_json(column) for silo, column in tx.execute(query)}

    def consensuses_seen(self, task: str, round_number: int) -> set[str]:
        """Digests of earlier consensuses of a round that its voters were sent before a restore."""
        query = select(ballots.c.consensuses_seen).where(
            ballots.c.task == task, ballots.c.round == round_number
        )
        with snapshot(self._engine) as tx:
            return {digest for seen in tx.execute(query).scalars() for digest in seen or ()}

    def latest_declarations(self, task: str) -> list[SiloDeclaration]:
        """What each silo declared of its latest ballot in a task, by name."""
        mine = ballots.c.task == task
        last = (
            select(ballots.c.silo, func.max(ballots.c.round).label("round"))
            .where(mine)
            .group_by(ballots.c.silo)
            .subquery()
        )
        query = (
            select(ballots.c.silo, ballots.c.round, ballots.c.privacy)
            .join(last, (last.c.silo == ballots.c.silo) & (last.c.round == ballots.c.round))
            .where(mine)
            .order_by(in_order(ballots.c.silo))
        )
        with snapshot(self._engine) as tx:
            return [
                SiloDeclaration(silo, round_number, _declaration_from_json(column))
                for silo, round_number, column in tx.execute(query)
            ]

    def number_held(self, silo: str) -> int:
        """How many ballots of a silo are stored, in all tasks."""
        query = select(func.count()).select_from(ballots).where(ballots.c.silo == silo)
        with snapshot(self._engine) as tx:
            return tx.execute(query).scalar_one()


def _declaration_to_json(declaration: Declaration) -> dict[str, Any] | None:
    """As the column `privacy` holds it: the wire's own fields; NULL if nothing was declared."""
    if declaration == Declaration():
        return None
    return MessageToDict(declaration.to_proto(), preserving_proto_field_name=True)


def _declaration_from_json(column: dict[str, Any] | None) -> Declaration:
    if column is None:
        return Declaration()
    return Declaration.from_proto(ParseDict(column, privacy_pb2.PrivacyDeclaration()))


def _audit_details(ballot: BallotRecord) -> dict[str, str | int]:
    """What the audit chain says of its silo's declarations; ε and δ as the wire carries them, 0 for no bound."""
    details: dict[str, str | int] = {}
    if ballot.consensuses_seen:
        details["consensuses_seen"] = " ".join(ballot.consensuses_seen)
    declaration = ballot.declaration
    if declaration != Declaration():
        said = declaration.to_proto()
        details |= {
            "mechanism": str(declaration.mechanism),
            "epsilon_micros": said.epsilon_micros,
            "delta_picos": said.delta_picos,
            "unit": str(declaration.unit),
            "estimate": int(declaration.estimate),
        }
    return details


def _key(task: str, round_number: int, silo: str) -> dict[str, str | int]:
    return {"task": task, "round": round_number, "silo": silo}


def _held(tx: Connection, task: str, round_number: int, silo: str) -> BallotRecord | None:
    row = tx.execute(_HELD, _key(task, round_number, silo)).mappings().first()
    if row is None:
        return None
    values = dict(row)
    declaration = _declaration_from_json(values.pop("privacy"))
    values["consensuses_seen"] = tuple(values["consensuses_seen"] or ())
    return BallotRecord(**values, already_held=True, declaration=declaration)
