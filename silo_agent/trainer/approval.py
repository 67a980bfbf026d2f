"""Consent: whether a task, known by its definition's digest, may be trained for and voted in here.

Limits hold always. Within them a person's latest word on the digest decides; where no person has spoken, the
policy does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path

import structlog

from silo_agent.trainer.approval_record import Act, Approval, ApprovalRecord
from silo_agent.trainer.policy import Approve, Terms, read_terms
from wire.errors import (
    APPROVAL_NEEDED,
    APPROVAL_REFUSED_BY_POLICY,
    APPROVAL_WITHDRAWN,
    ConfigurationError,
    Refusal,
)
from wire.task import TaskDefinition

log = structlog.get_logger()

SHOWN_DIGITS = 12
"""As much of a digest as a sentence shows."""


class Standing(StrEnum):
    """Where a task stands at this hospital."""

    WAITING = "waiting for approval"
    APPROVED = "approved"
    REFUSED = "refused by policy"


@dataclass(frozen=True)
class Decision:
    """A task's standing and what it rests on."""

    standing: Standing
    broken: tuple[str, ...] = ()
    """The limits a refused task breaks."""
    approval: Approval | None = None
    """The recorded act, if there is one."""


def decide(definition: TaskDefinition, terms: Terms, approvals: Sequence[Approval]) -> Decision:
    """Where `definition` stands; other definitions' approvals, also of the same name, do not count."""
    policy = terms.policy
    broken = policy.broken_by(definition, terms.promise)
    if broken:
        return Decision(Standing.REFUSED, broken)
    acts = [approval for approval in approvals if approval.digest == definition.digest]
    persons = [approval for approval in acts if approval.act is not Act.ACCEPTED_BY_POLICY]
    if persons:
        approved = persons[-1].act is Act.APPROVED
        return Decision(Standing.APPROVED if approved else Standing.WAITING, approval=persons[-1])
    if policy.approve is Approve.WITHIN_LIMITS:
        return Decision(Standing.APPROVED, approval=acts[0] if acts else None)
    return Decision(Standing.WAITING)


def act_on(
    act: Act, definition: TaskDefinition, by: str, now: datetime, note: str = ""
) -> Approval:
    """The entry for the record."""
    return Approval(
        act=act,
        task=definition.name,
        digest=definition.digest,
        by=by,
        at=now.astimezone(UTC).isoformat(timespec="seconds"),
        note=note,
        definition=definition.model_dump(mode="json"),
    )


class Consent:
    """Asked by the trainer before everything it does for a task; reads policy and record anew each time."""

    def __init__(
        self,
        settings_file: Path,
        record: ApprovalRecord,
        clock: Callable[[], datetime],
    ) -> None:
        self._settings_file = settings_file
        self._record = record
        self._clock = clock
        self._told: dict[str, Decision] = {}

    def require(self, definition: TaskDefinition) -> None:
        """Raises APPROVAL_NEEDED, APPROVAL_WITHDRAWN or APPROVAL_REFUSED_BY_POLICY unless the task is approved now."""
        task, digest = definition.name, definition.digest[:SHOWN_DIGITS]
        try:
            terms = read_terms(self._settings_file)
        except ConfigurationError as error:
            why = error.sentence.rstrip(".")
            raise Refusal(APPROVAL_REFUSED_BY_POLICY, task=task, digest=digest, why=why) from None
        decision = decide(definition, terms, self._record.approvals())
        if decision.standing is Standing.APPROVED and decision.approval is None:
            self._record.add(act_on(Act.ACCEPTED_BY_POLICY, definition, "policy", self._clock()))
        self._tell(definition, decision)
        if decision.standing is Standing.REFUSED:
            why = "; ".join(decision.broken)
            raise Refusal(APPROVAL_REFUSED_BY_POLICY, task=task, digest=digest, why=why)
        if decision.standing is Standing.WAITING:
            # Whoever withdrew has decided: nobody has to be asked.
            fault = APPROVAL_NEEDED if decision.approval is None else APPROVAL_WITHDRAWN
            raise Refusal(fault, task=task, digest=digest)

    def _tell(self, definition: TaskDefinition, decision: Decision) -> None:
        """Logs a task's standing when it changes, not at every question."""
        told = self._told.get(definition.digest)
        self._told[definition.digest] = decision
        if told is None or (told.standing, told.broken) != (decision.standing, decision.broken):
            log.info(
                "task_standing",
                task=definition.name,
                digest=definition.digest,
                standing=str(decision.standing),
                limits=list(decision.broken),
            )
