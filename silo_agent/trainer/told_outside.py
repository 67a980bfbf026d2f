"""What the network side is told when the trainer refuses: a code, and never a sentence about private data.

A compromised agent may ask as often as it likes and pays nothing for an answer. So only refusals whose sentences follow
from what the agent sent, from public files, or from the books may pass as they are; of everything else the trainer's
own log has the sentence, and `consilium agent check` on the private side.
"""

from __future__ import annotations

from typing import Final

import structlog

from wire import errors
from wire.errors import (
    PRIVATE_SIDE_UNREADY,
    TRAINING_FAILED,
    ConsiliumError,
    Fault,
    Refusal,
)

log = structlog.get_logger()

PASSES: Final[dict[Fault, str]] = {
    errors.APPROVALS_BROKEN: "about the record of approvals",
    errors.APPROVAL_NEEDED: "names the task",
    errors.APPROVAL_OUTDATED: "names the task",
    errors.APPROVAL_REFUSED_BY_POLICY: "limits of silo.yaml beside what the task asks for",
    errors.APPROVAL_WITHDRAWN: "names the task",
    errors.BALLOT_DAMAGED: "names task and round",
    errors.BALLOT_OUTDATED: "names task and round",
    errors.BUDGET_EXCEEDED: "about the ledger",
    errors.CONTENT_CORRUPT: "names a public file",
    errors.DATA_MISMATCH: "names the task, and nothing of why",
    errors.DISK_FULL: "names a file",
    errors.EXTRACTOR_INVALID: "about a public file",
    errors.EXTRACTOR_UNKNOWN: "what the agent asked for",
    errors.LEDGER_BROKEN: "about the ledger",
    errors.LEDGER_ROLLED_BACK: "about the ledger",
    errors.LEDGER_UNUSABLE: "about the ledger",
    errors.MESSAGE_MALFORMED: "what the agent sent",
    errors.NOT_PREPARED: "names the task",
    errors.PATIENTS_CHARGED_ELSEWHERE: "says nothing more",
    errors.PATIENT_RECORD_LOST: "says nothing more",
    errors.PATIENT_RECORD_UNUSABLE: "about a file",
    errors.PRIVATE_SIDE_UNREADY: "says nothing more",
    errors.PUBLIC_SET_INVALID: "about a public file",
    errors.PUBLIC_SET_UNKNOWN: "what the agent asked for",
    errors.ROUND_BEYOND_TASK: "what the agent asked for",
    errors.SETTINGS_CHANGED: "says nothing more",
    errors.TASK_INVALID: "about the definition the agent sent",
    errors.TRAINER_UNREACHABLE: "names the socket",
    errors.TRAINING_FAILED: "names the round",
}
"""Refusals that cross the socket as they are, and why their sentences may."""
_CODES: Final = frozenset(fault.code for fault in PASSES)


def told_outside(error: Exception, round_number: int) -> Refusal:
    """The refusal the agent gets for `error`; the trainer's log gets all of it."""
    if isinstance(error, Refusal) and error.code in _CODES:
        return error
    if isinstance(error, ConsiliumError):
        # It may name columns and count rows.
        log.error("refused", code=error.code, sentence=error.sentence, hint=error.hint)
        return Refusal(PRIVATE_SIDE_UNREADY)
    # Its text may quote cells, and its type may follow from one.
    log.error("training_failed", exc_info=error)
    return Refusal(TRAINING_FAILED, round=round_number)
