"""Verifies the audit record: is it intact, and does every ballot have a receipt or a refusal?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from silo_agent.agent.audit.entries import Kind
from silo_agent.agent.audit.file import StoredRecord
from silo_agent.agent.audit.receipts import RecordedReceipt, SignerFolder, receipt_flaw
from wire.runtime.chain import Broken, Head, Link, head_of

_RECEIPT_COLUMNS = ("consortium", "silo", "accepted_at", "signer", "signature", "authority")


@dataclass(frozen=True)
class UnprovenReceipt:
    """A receipt that does not verify: its entry's number, and why."""

    sequence: int
    why: str


@dataclass(frozen=True)
class UnacknowledgedBallot:
    """A ballot that was sent and has no receipt."""

    sequence: int
    """Number of the entry of its last sending, or of the refusal."""
    task: str
    round: int
    digest: str
    refused: bool
    """True if the coordinator did not take it; False if it has not answered."""


@dataclass(frozen=True)
class Report:
    """The result of a verification."""

    entries: int
    head: Head
    broken: Broken | None
    ballots: int
    """Ballots sent, each counted once however often it was sent."""
    proven: int
    """Receipts whose signature verifies."""
    unproven: tuple[UnprovenReceipt, ...]
    without_receipt: tuple[UnacknowledgedBallot, ...]
    torn: int
    """Half-written lines that crashes left; they are not part of the record."""


def verify_record(record: StoredRecord, signers: SignerFolder, silo: str | None) -> Report:
    """Verifies every receipt and matches it to its ballot; `silo` is this silo's name, if known."""
    ballots: dict[tuple[object, object, object], UnacknowledgedBallot] = {}
    answered = set()
    unproven, proven = [], 0
    for link in record.links:
        entry = link.entry
        key = (entry.get("task"), entry.get("round"), entry.get("digest"))
        match entry.get("kind"):
            case Kind.BALLOT:
                ballots[key] = _unacknowledged(link, refused=False)
            case Kind.REFUSAL:
                ballots[key] = _unacknowledged(link, refused=True)
            case Kind.RECEIPT:
                answered.add(key)
                if why := _flaw(entry, signers, silo):
                    unproven.append(UnprovenReceipt(link.sequence, why))
                else:
                    proven += 1
    return Report(
        entries=len(record.links),
        head=head_of(record.links),
        broken=record.broken,
        ballots=len(ballots),
        proven=proven,
        unproven=tuple(unproven),
        without_receipt=tuple(open_ for key, open_ in ballots.items() if key not in answered),
        torn=record.torn_before + (record.torn > 0),
    )


def rows(record: StoredRecord) -> list[dict[str, object]]:
    """The record as a table, one flat row per entry; columns that do not apply are empty."""
    return [_row(link) for link in record.links]


def _row(link: Link) -> dict[str, object]:
    names = ("direction", "kind", "task", "round", "bytes", "digest")
    receipt = link.entry.get("receipt")
    proof = receipt if isinstance(receipt, Mapping) else {}
    return {
        "sequence": link.sequence,
        "time": link.entry.get("at", ""),
        **{name: link.entry.get(name, "") for name in names},
        **{f"receipt_{name}": proof.get(name, "") for name in _RECEIPT_COLUMNS},
        "previous": link.previous,
        "hash": link.hash,
    }


def _unacknowledged(link: Link, *, refused: bool) -> UnacknowledgedBallot:
    entry = link.entry
    return UnacknowledgedBallot(
        link.sequence,
        str(entry.get("task")),
        int(str(entry.get("round"))),
        str(entry.get("digest")),
        refused,
    )


def _flaw(entry: Mapping[str, object], signers: SignerFolder, silo: str | None) -> str:
    recorded = entry.get("receipt")
    try:
        receipt = RecordedReceipt.from_entry(recorded if isinstance(recorded, Mapping) else {})
    except (ValueError, KeyError, TypeError):
        return "it cannot be read"
    stated = receipt.statement
    ballot = (stated.task, stated.round, stated.digest)
    if ballot != (entry.get("task"), entry.get("round"), entry.get("digest")):
        return "it is for another ballot"
    if silo is not None and stated.silo != silo:
        return f"it is for silo {stated.silo}"
    return receipt_flaw(receipt, signers)
