"""Consent: whether a task, known by its definition's digest, may be trained for and voted in here.

Limits hold always. Within them a person's latest word on the digest decides, a yes only for the settings it was
given for; where no word holds, the policy decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

import structlog

from silo_agent.trainer.approval.policy import ApprovalCriteria, Approve, in_words
from silo_agent.trainer.approval.record import Act, Approval, ApprovalRecord
from wire.errors import (
    APPROVAL_NEEDED,
    APPROVAL_OUTDATED,
    APPROVAL_REFUSED_BY_POLICY,
    APPROVAL_WITHDRAWN,
    Fault,
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
    """The recorded act, if there is one; of a waiting task a refusal, or a yes to other settings."""


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
    word = persons[-1] if persons else None
    if word is not None and (state := _said_by_a_person(word, criteria)):
        return Decision(state, approval=word)
    if policy.approve is Approve.WITHIN_LIMITS:
        return Decision(ApprovalState.APPROVED, approval=_accepted_before(acts, criteria))
    return Decision(ApprovalState.WAITING, approval=word)


def _said_by_a_person(word: Approval, criteria: ApprovalCriteria) -> ApprovalState | None:
    """What a person's latest word decides; None if it was a yes to other settings."""
    if word.act is Act.WITHDRAWN:
        return ApprovalState.WAITING
    return ApprovalState.APPROVED if word.settings == criteria.settings else None


def _accepted_before(acts: Sequence[Approval], criteria: ApprovalCriteria) -> Approval | None:
    """The policy's own act for these settings, if it is recorded."""
    accepted = (act for act in acts if act.act is Act.ACCEPTED_BY_POLICY)
    return next((act for act in accepted if act.settings == criteria.settings), None)


def act_on(
    act: Act,
    definition: TaskDefinition,
    criteria: ApprovalCriteria,
    by: str,
    now: datetime,
    note: str = "",
) -> Approval:
    """The entry for the record; it holds for the settings of `criteria` only."""
    return Approval(
        act=act,
        task=definition.name,
        digest=definition.digest,
        by=by,
        at=now.astimezone(UTC).isoformat(timespec="seconds"),
        note=note,
        definition=definition.model_dump(mode="json"),
        settings=criteria.settings,
        promise=in_words(criteria.promise),
    )


class Consent:
    """Asked by the trainer before everything it does for a task; reads the record anew each time.

    Tasks are judged by the settings the trainer runs with, never by a file that may say something else.
    """

    def __init__(
        self,
        criteria: ApprovalCriteria,
        require_unchanged: Callable[[], None],
        record: ApprovalRecord,
        clock: Callable[[], datetime],
    ) -> None:
        """`criteria` are those of the running trainer; `require_unchanged` raises where silo.yaml differs from them."""
        self._criteria = criteria
        self._require_unchanged = require_unchanged
        self._record = record
        self._clock = clock
        self._told: dict[str, Decision] = {}

    @property
    def max_public_bytes(self) -> int:
        """What the policy lets a task's public files have, together."""
        return self._criteria.policy.max_public_bytes

    def decided(self) -> frozenset[str]:
        """Digests of the tasks on which a person or the policy has decided."""
        return frozenset(approval.digest for approval in self._record.approvals())

    def require(self, definition: TaskDefinition) -> None:
        """Raises a refusal unless the task is approved now, for the settings that run, and silo.yaml still has them."""
        task, digest = definition.name, definition.digest[:SHOWN_DIGITS]
        self._require_unchanged()
        decision = decide(definition, self._criteria, self._record.approvals())
        if decision.state is ApprovalState.APPROVED and decision.approval is None:
            act, now = Act.ACCEPTED_BY_POLICY, self._clock()
            self._record.add(act_on(act, definition, self._criteria, "policy", now))
        self._tell(definition, decision)
        if decision.state is ApprovalState.REFUSED:
            why = "; ".join(decision.broken)
            raise Refusal(APPROVAL_REFUSED_BY_POLICY, task=task, digest=digest, why=why)
        if decision.state is ApprovalState.WAITING:
            raise Refusal(_why_waiting(decision), task=task, digest=digest)

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


def _why_waiting(decision: Decision) -> Fault:
    if decision.approval is None:
        return APPROVAL_NEEDED
    # Whoever withdrew has decided: nobody has to be asked.
    withdrawn = decision.approval.act is Act.WITHDRAWN
    return APPROVAL_WITHDRAWN if withdrawn else APPROVAL_OUTDATED
