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

from silo_agent.trainer.approval.policy import ApprovalCriteria, Approve, read_criteria
from silo_agent.trainer.approval.record import Act, Approval, ApprovalRecord
from wire.errors import (
    APPROVAL_NEEDED,
    APPROVAL_REFUSED_BY_POLICY,
    APPROVAL_WITHDRAWN,
    ConfigurationError,
    Refusal,
)
from wire.task.definition import TaskDefinition

log = structlog.get_logger()

SHOWN_DIGITS = 12
"""As much of a digest as a sentence shows."""


class ApprovalState(StrEnum):
    """Where a task stands at this hospital."""

    WAITING = "waiting for approval"
    APPROVED = "approved"
    REFUSED = "refused by policy"


@dataclass(frozen=True)
class Decision:
    """A task's state and what it rests on."""

    state: ApprovalState
    broken: tuple[str, ...] = ()
    """The limits a refused task breaks."""
    approval: Approval | None = None
    """The recorded act, if there is one."""


def decide(
    definition: TaskDefinition, criteria: ApprovalCriteria, approvals: Sequence[Approval]
) -> Decision:
    """Where `definition` stands; other definitions' approvals, also of the same name, do not count."""
    policy = criteria.policy
    broken = policy.broken_by(definition, criteria.promise)
    if broken:
        return Decision(ApprovalState.REFUSED, broken)
    digest = definition.digest
    acts = [approval for approval in approvals if approval.digest == digest]
    persons = [approval for approval in acts if approval.act is not Act.ACCEPTED_BY_POLICY]
    if persons:
        approved = persons[-1].act is Act.APPROVED
        return Decision(
            ApprovalState.APPROVED if approved else ApprovalState.WAITING, approval=persons[-1]
        )
    if policy.approve is Approve.WITHIN_LIMITS:
        return Decision(ApprovalState.APPROVED, approval=acts[0] if acts else None)
    return Decision(ApprovalState.WAITING)


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

    @property
    def max_public_bytes(self) -> int:
        """What the policy lets a task's public files have; ConfigurationError if it cannot be read."""
        return read_criteria(self._settings_file).policy.max_public_bytes

    def decided(self) -> frozenset[str]:
        """Digests of the tasks on which a person or the policy has decided."""
        return frozenset(approval.digest for approval in self._record.approvals())

    def require(self, definition: TaskDefinition) -> None:
        """Raises APPROVAL_NEEDED, APPROVAL_WITHDRAWN or APPROVAL_REFUSED_BY_POLICY unless the task is approved now."""
        task, digest = definition.name, definition.digest[:SHOWN_DIGITS]
        try:
            criteria = read_criteria(self._settings_file)
        except ConfigurationError as error:
            why = error.sentence.rstrip(".")
            raise Refusal(APPROVAL_REFUSED_BY_POLICY, task=task, digest=digest, why=why) from None
        decision = decide(definition, criteria, self._record.approvals())
        if decision.state is ApprovalState.APPROVED and decision.approval is None:
            self._record.add(act_on(Act.ACCEPTED_BY_POLICY, definition, "policy", self._clock()))
        self._tell(definition, decision)
        if decision.state is ApprovalState.REFUSED:
            why = "; ".join(decision.broken)
            raise Refusal(APPROVAL_REFUSED_BY_POLICY, task=task, digest=digest, why=why)
        if decision.state is ApprovalState.WAITING:
            # Whoever withdrew has decided: nobody has to be asked.
            fault = APPROVAL_NEEDED if decision.approval is None else APPROVAL_WITHDRAWN
            raise Refusal(fault, task=task, digest=digest)

    def _tell(self, definition: TaskDefinition, decision: Decision) -> None:
        """Logs a task's state when it changes, not at every question."""
        told = self._told.get(definition.digest)
        self._told[definition.digest] = decision
        if told is None or (told.state, told.broken) != (decision.state, decision.broken):
            log.info(
                "task_state",
                task=definition.name,
                digest=definition.digest,
                state=str(decision.state),
                limits=list(decision.broken),
            )
