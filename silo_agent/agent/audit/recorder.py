"""The silo's audit record: everything sent and received, hash-chained, on disk before it is sent."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from silo_agent.agent.audit.entries import AuditEntry, Direction, Kind
from silo_agent.agent.audit.file import RecordWriter, read_record, record_path
from silo_agent.agent.audit.receipts import RecordedReceipt
from wire.errors import AUDIT_BROKEN, ConfigurationError, Refusal
from wire.runtime.chain import Link, append

_ANSWERS = (Kind.RECEIPT, Kind.REFUSAL)
# Recorded once per task or public file, not per round: few enough to keep in memory.
_ONCE = (Kind.APPROVAL, Kind.PUBLIC_SET, Kind.EXTRACTOR)


class AuditLog:
    """Appends to the record in `folder`; ConfigurationError if that is damaged.

    A ballot is sent only after `record` has returned: what is not on the disk does not leave.
    """

    def __init__(self, folder: Path, clock: Callable[[], datetime]) -> None:
        stored = read_record(folder)
        if stored.broken is not None:
            raise ConfigurationError(
                Refusal(
                    AUDIT_BROKEN, sequence=stored.broken.sequence, why=stored.broken.why
                ).sentence,
                f"Nothing leaves while the record is broken: show {record_path(folder)} to the data "
                "protection officer, then move it and audit-head.json elsewhere to begin a new one.",
            )
        self.folder = folder
        self._clock = clock
        self._writer = RecordWriter(folder, stored)
        self._unanswered: dict[tuple[str, int], str] = {}
        self._once: set[tuple[Kind, str]] = set()
        self._last_ballot: dict[str, int] = {}
        self._last_consensus: dict[str, int] = {}
        self.ballots = 0
        """Ballots ever sent, each counted once however often it was sent."""
        for link in stored.links:
            self._index(audit_entry(link))

    def record(
        self,
        direction: Direction,
        kind: Kind,
        task: str,
        round_: int,
        size: int,
        digest: str,
        receipt: RecordedReceipt | None = None,
    ) -> None:
        """Writes one entry to the disk, a receipt with its proof."""
        now = self._clock().isoformat(timespec="milliseconds")
        entry = AuditEntry(now, direction, kind, task, round_, size, digest)
        fields = entry.as_json()
        if receipt is not None:
            fields["receipt"] = receipt.entry()
        self._writer.append(append(self._writer.head, fields))
        self._index(entry)

    def unanswered(self, task: str) -> dict[int, str]:
        """Rounds whose ballot was sent and has neither receipt nor refusal, with the ballot's digest."""
        return {
            round_number: digest
            for (name, round_number), digest in self._unanswered.items()
            if name == task
        }

    def has(self, kind: Kind, digest: str) -> bool:
        """True if an approval, public set or extractor with this digest is in the record."""
        return (kind, digest) in self._once

    def consensuses(self, task: str, definition: str, round_number: int) -> list[str]:
        """Digests of the consensuses of a round in order of arrival; several if one was formed again.

        Only those of the task whose definition has the digest `definition`: another may have had its name before.
        """
        # A ballot normally precedes the round's consensus, so the file is rarely read.
        if round_number > self._last_consensus.get(task, 0):
            return []
        approved, received = "", []
        for one in read_entries(self.folder):
            if one.task != task:
                continue
            if one.kind is Kind.APPROVAL:
                approved = one.digest
            elif (one.kind, one.round, approved) == (Kind.CONSENSUS, round_number, definition):
                received.append(one.digest)
        return list(dict.fromkeys(received))

    def _index(self, entry: AuditEntry) -> None:
        ballot = (entry.task, entry.round)
        if entry.kind in _ONCE:
            self._once.add((entry.kind, entry.digest))
        if entry.kind is Kind.BALLOT:
            self._unanswered[ballot] = entry.digest
            # Rounds of a task ascend; the same one again is the same ballot sent again.
            if entry.round > self._last_ballot.get(entry.task, 0):
                self._last_ballot[entry.task] = entry.round
                self.ballots += 1
        elif entry.kind in _ANSWERS:
            self._unanswered.pop(ballot, None)
        elif entry.kind is Kind.CONSENSUS:
            last = self._last_consensus.get(entry.task, 0)
            self._last_consensus[entry.task] = max(last, entry.round)


def audit_entry(link: Link) -> AuditEntry:
    """The entry in a link of the chain; AUDIT_BROKEN if it is none."""
    try:
        return AuditEntry.from_entry(link.entry)
    except (ValueError, KeyError, TypeError):
        why = "it is not an entry this version knows"
        raise Refusal(AUDIT_BROKEN, sequence=link.sequence, why=why) from None


def read_entries(folder: Path) -> list[AuditEntry]:
    """Every entry, oldest first, whether or not the chain is intact."""
    return [audit_entry(link) for link in read_record(folder).links]
