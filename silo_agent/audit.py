"""The silo's audit record: everything that left and everything that came, chained, on disk before it leaves."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from silo_agent.audit_file import RecordWriter, read_record, record_path
from silo_agent.receipts import KeptReceipt
from silo_agent.traffic import Direction, Kind, Movement
from wire.chain import Link, append
from wire.errors import AUDIT_BROKEN, ConfigurationError, Refusal

_ANSWERS = (Kind.RECEIPT, Kind.REFUSAL)
# As many as there are tasks and public files, not as there are rounds: they may be kept in memory.
_ONCE = (Kind.APPROVAL, Kind.PUBLIC_SET, Kind.EXTRACTOR)


class AuditLog:
    """Appends to the record in `folder`; refuses to go on behind one that is broken.

    A ballot is cast only after `record` has returned: what is not on the disk does not leave.
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
        self._last_cast: dict[str, int] = {}
        self._last_heard: dict[str, int] = {}
        self.ballots = 0
        """Ballots that have ever left, each counted once however often it was sent."""
        for link in stored.links:
            self._note(movement_in(link))

    def record(
        self,
        direction: Direction,
        kind: Kind,
        task: str,
        round_: int,
        size: int,
        digest: str,
        receipt: KeptReceipt | None = None,
    ) -> None:
        """Puts one movement on the disk, a receipt with its proof."""
        now = self._clock().isoformat(timespec="milliseconds")
        movement = Movement(now, direction, kind, task, round_, size, digest)
        entry = movement.entry()
        if receipt is not None:
            entry["receipt"] = receipt.entry()
        self._writer.append(append(self._writer.head, entry))
        self._note(movement)

    def unanswered(self, task: str) -> dict[int, str]:
        """Rounds whose ballot left without a receipt or refusal coming back, with the ballot's digest."""
        return {
            number: digest for (name, number), digest in self._unanswered.items() if name == task
        }

    def has(self, kind: Kind, digest: str) -> bool:
        """True if such a thing, one that is recorded once, is in the record."""
        return (kind, digest) in self._once

    def consensuses(self, task: str, definition: str, number: int) -> list[str]:
        """Digests of the consensuses of a round in the order they came; several if one was formed again.

        Of the task with that definition's digest only: another may have had its name before.
        """
        # Ballots are cast ahead of the last consensus, so that the file is hardly ever read.
        if number > self._last_heard.get(task, 0):
            return []
        approved, came = "", []
        for one in movements(self.folder):
            if one.task != task:
                continue
            if one.kind is Kind.APPROVAL:
                approved = one.digest
            elif (one.kind, one.round, approved) == (Kind.CONSENSUS, number, definition):
                came.append(one.digest)
        return list(dict.fromkeys(came))

    def _note(self, movement: Movement) -> None:
        ballot = (movement.task, movement.round)
        if movement.kind in _ONCE:
            self._once.add((movement.kind, movement.digest))
        if movement.kind is Kind.BALLOT:
            self._unanswered[ballot] = movement.digest
            # Rounds of a task come in order; the same one again is the same ballot sent again.
            if movement.round > self._last_cast.get(movement.task, 0):
                self._last_cast[movement.task] = movement.round
                self.ballots += 1
        elif movement.kind in _ANSWERS:
            self._unanswered.pop(ballot, None)
        elif movement.kind is Kind.CONSENSUS:
            heard = self._last_heard.get(movement.task, 0)
            self._last_heard[movement.task] = max(heard, movement.round)


def movement_in(link: Link) -> Movement:
    """What an entry says; AUDIT_BROKEN if it says nothing of the kind."""
    try:
        return Movement.from_entry(link.entry)
    except (ValueError, KeyError, TypeError):
        why = "it is not an entry this version knows"
        raise Refusal(AUDIT_BROKEN, sequence=link.sequence, why=why) from None


def movements(folder: Path) -> list[Movement]:
    """Everything recorded, oldest first, whether or not the chain is whole."""
    return [movement_in(link) for link in read_record(folder).links]
