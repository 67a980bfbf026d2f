"""What an officer wants to know of the audit record: is it whole, and is every ballot accounted for?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from silo_agent.audit_file import StoredRecord
from silo_agent.receipts import KeptReceipt, SignerFolder, flaw
from silo_agent.traffic import Kind
from wire.chain import Broken, Head, Link, head_of

_RECEIPT_COLUMNS = ("consortium", "silo", "accepted_at", "signer", "signature", "authority")


@dataclass(frozen=True)
class Unproven:
    """A receipt that proves nothing: its entry's number, and why."""

    sequence: int
    why: str


@dataclass(frozen=True)
class OpenBallot:
    """A ballot that left and has no receipt."""

    sequence: int
    """The entry of its last cast, or of the refusal."""
    task: str
    round: int
    digest: str
    refused: bool
    """True if the coordinator did not take it; False if it has not answered."""


@dataclass(frozen=True)
class Report:
    """The outcome of a verification."""

    entries: int
    head: Head
    broken: Broken | None
    ballots: int
    """Ballots that left, however often each was cast."""
    proven: int
    """Receipts whose signature verifies."""
    unproven: tuple[Unproven, ...]
    without_receipt: tuple[OpenBallot, ...]
    torn: int
    """Half-written lines that a crash left and that were taken out."""


def examine(record: StoredRecord, signers: SignerFolder, silo: str | None) -> Report:
    """Verifies every receipt and matches it to its ballot; `silo` is our name, if it is known."""
    ballots: dict[tuple[object, object, object], OpenBallot] = {}
    answered = set()
    unproven, proven = [], 0
    for link in record.links:
        entry = link.entry
        key = (entry.get("task"), entry.get("round"), entry.get("digest"))
        match entry.get("kind"):
            case Kind.BALLOT:
                ballots[key] = _open(link, refused=False)
            case Kind.REFUSAL:
                ballots[key] = _open(link, refused=True)
            case Kind.RECEIPT:
                answered.add(key)
                if why := _flaw(entry, signers, silo):
                    unproven.append(Unproven(link.sequence, why))
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
    """The record as a table, one flat row per entry; what a receipt lacks is empty."""
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


def _open(link: Link, *, refused: bool) -> OpenBallot:
    entry = link.entry
    return OpenBallot(
        link.sequence,
        str(entry.get("task")),
        int(str(entry.get("round"))),
        str(entry.get("digest")),
        refused,
    )


def _flaw(entry: Mapping[str, object], signers: SignerFolder, silo: str | None) -> str:
    kept = entry.get("receipt")
    try:
        receipt = KeptReceipt.from_entry(kept if isinstance(kept, Mapping) else {})
    except (ValueError, KeyError, TypeError):
        return "it cannot be read"
    stated = receipt.statement
    ours = (stated.task, stated.round, stated.digest)
    if ours != (entry.get("task"), entry.get("round"), entry.get("digest")):
        return "it is for another ballot"
    if silo is not None and stated.silo != silo:
        return f"it is for silo {stated.silo}"
    return flaw(receipt, signers)
