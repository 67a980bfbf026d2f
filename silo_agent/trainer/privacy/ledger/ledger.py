"""The privacy ledger: everything that left this hospital and what it cost, on the disk before it leaves.

Entries are chained by their hashes (`wire.runtime.chain`); ε is never in them, always derived. Before anything is
added the chain is verified, all of it at first and then what is new, and its end is held against a witness
kept elsewhere: an old copy put back from a backup would let the same budget be spent twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path

from silo_agent.trainer.privacy.budget import Budget, Exceeded
from silo_agent.trainer.privacy.ledger.file import LedgerFile, LedgerTransaction
from silo_agent.trainer.privacy.ledger.index import Entry, LedgerIndex
from silo_agent.trainer.privacy.ledger.release import Kind, Release, written_off
from silo_agent.trainer.privacy.ledger.witness import Witness, WitnessedHead
from wire.errors import BUDGET_EXCEEDED, LEDGER_BROKEN, LEDGER_ROLLED_BACK, Refusal
from wire.privacy.declaration import Unit
from wire.privacy.events import Event
from wire.runtime.chain import Damage, Head, Link, append, first_break
from wire.runtime.crash_points import crash_point


class Overspent(Refusal):
    """BUDGET_EXCEEDED: nothing was put on the books, so the ballot must not leave."""

    def __init__(self, exceeded: Exceeded) -> None:
        super().__init__(BUDGET_EXCEEDED, why=exceeded.sentence)
        self.exceeded = exceeded


class Ledger:
    """Many processes and threads may use one file at the same time.

    Every method raises LEDGER_BROKEN if the chain is, LEDGER_ROLLED_BACK if the end of it is gone, and
    LEDGER_UNUSABLE if the file cannot be read or written. Nothing is created before the first release.
    """

    def __init__(self, path: Path, witness_path: Path, clock: Callable[[], datetime]) -> None:
        self._file = LedgerFile(path)
        self._witness = Witness(witness_path)
        self._clock = clock
        self._index = LedgerIndex()
        self._patients: dict[str, int] = {}
        self._lock = threading.RLock()

    # -- what is on the books ---------------------------------------------------------------------------

    def verify(self) -> Head:
        """Verifies the whole chain and its end anew; where it ends."""
        with self._lock:
            seen = self._witness.read()
            index = self._reload(self._file.links(), self._index.head)
            self._check_witness(index, seen)
            return index.head

    def entries(
        self, dataset: str | None = None, task_digest: str | None = None
    ) -> tuple[Entry, ...]:
        """Releases with their places in the chain, oldest first; of one data set, of one task."""
        with self._lock:
            return tuple(
                entry
                for entry in self._current().entries
                if dataset in (None, entry.release.dataset)
                and task_digest in (None, entry.release.task_digest)
            )

    def releases(
        self, dataset: str | None = None, task_digest: str | None = None
    ) -> tuple[Release, ...]:
        """Releases, oldest first; of one data set, of one task."""
        return tuple(entry.release for entry in self.entries(dataset, task_digest))

    def ballots(self) -> int:
        """How many ballots left: paid, repeated, abstaining or written off."""
        with self._lock:
            return self._current().ballots

    def spent(self, dataset: str, delta: float, task_digest: str = "") -> float:
        """ε at `delta` of everything released from a data set, or by one task from it; see `Account.total`."""
        with self._lock:
            return self._current().accounts.account(dataset, task_digest).total(delta).epsilon

    def charged(self) -> dict[str, int]:
        """Data sets that something was charged to, with how many hashes of their patients were on record."""
        with self._lock:
            return dict(self._current().charged)

    def together(self, dataset: str, other: str) -> bool:
        """True if two data sets are charged to one budget."""
        with self._lock:
            accounts = self._current().accounts
            return accounts.owner(dataset) == accounts.owner(other)

    def note_patients(self, dataset: str, kept: int) -> None:
        """From now on entries of a data set say that so many hashes of its patients are on record."""
        with self._lock:
            self._patients[dataset] = kept

    def paid(self, task_digest: str, round_number: int, ballot_digest: str) -> bool:
        """True if this very ballot of round `round_number` is on the books and may be handed out."""
        with self._lock:
            return self._current().has(task_digest, round_number, ballot_digest)

    def paid_basis(self, basis: str) -> bool:
        """True if the model of this digest was paid for, so that further ballots from it are free."""
        with self._lock:
            return self._current().paid_basis(basis)

    def holds(self, release: Release) -> bool:
        """True if `spend` would add nothing: this very ballot is on the books, for what it costs."""
        with self._lock:
            return self._current().find(release) is not None

    def would_exceed(
        self,
        dataset: str,
        task_digest: str,
        events: Iterable[Event],
        budget: Budget,
        plan: Iterable[Event] = (),
    ) -> Exceeded | None:
        """The budget that these events would exceed, if any. What is free always fits.

        `plan` is all that the task will release, known before the first of it.
        """
        with self._lock:
            return self._current().would_exceed(dataset, task_digest, events, budget, plan)

    def require_at_least(self, ballots: int) -> None:
        """LEDGER_ROLLED_BACK if others know of more ballots of this hospital than the ledger does."""
        known = self.ballots()
        if known < ballots:
            why = f"it knows of {known} ballots, but {ballots} were handed out"
            raise Refusal(LEDGER_ROLLED_BACK, why=why)

    # -- putting something on them ----------------------------------------------------------------------

    def spend(self, release: Release, budget: Budget) -> Link:
        """Puts a release on the books; when this returns it is on the disk and may leave.

        The same ballot of the same round again gives the entry that is there and adds nothing: it must be
        the ballot that was kept, not one drawn anew. Overspent if the budget does not allow it; ValueError for
        a release that claims to be free and is not.
        """
        return self._booked(
            lambda transaction, index: (
                self._added(transaction, index, release, budget)
                if (held := index.find(release)) is None
                else held.link
            )
        )

    def declare_same_patients(
        self, dataset: str, other: str, reason: str, unit: Unit, delta: float
    ) -> None:
        """Charges two data sets together from here on, for the reason that silo.yaml gives; once and for good."""
        if self.together(dataset, other):
            return
        release = Release(
            kind=Kind.SAME_PATIENTS,
            dataset=dataset,
            same_as=other,
            reason=reason,
            by="silo.yaml",
            unit=unit,
            delta=delta,
            ballots=0,
        )
        self._booked(lambda transaction, index: self._append(transaction, index, release))

    def _booked(self, add: Callable[[LedgerTransaction, LedgerIndex], Link]) -> Link:
        """What `add` puts on the books, within one transaction, and the witness told of it."""
        with self._lock:
            if not self._file.exists:
                # An empty one must not take the place of one that is lost.
                self._current()
                self._file.create()
            with self._file.writing() as transaction:
                index = self._synchronised(transaction.links)
                seen = self._witness.read()
                self._check_witness(index, seen)
                if seen is None:
                    self._write_first_witness()
                link = add(transaction, index)
            self._update_witness(link)
            return link

    def write_off(
        self,
        dataset: str,
        epsilon: float,
        delta: float,
        ballots: int,
        by: str,
        note: str,
        unit: Unit = Unit.PATIENT,
    ) -> Link:
        """Charges what a person assumes was spent by `ballots` ballots that are no longer on the books.

        The only way on after a loss (LEDGER_ROLLED_BACK): the entry names the end that is given up. Not
        possible behind a broken chain. ε = 0 says that nothing is lacking, ∞ that something had no noise.
        """
        release = Release(
            kind=Kind.WRITE_OFF,
            dataset=dataset,
            events=written_off(epsilon),
            estimate=True,
            unit=unit,
            delta=delta,
            reason=note,
            by=by,
            ballots=ballots,
        )
        with self._lock:
            self._index = LedgerIndex()
            seen = self._last_seen()
            self._file.create()
            with self._file.writing() as transaction:
                index = self._synchronised(transaction.links)
                if seen is None and not index.entries:
                    self._write_first_witness()
                if seen is not None and not index.contains(seen.head):
                    release = release.model_copy(update={"lost": seen.head})
                link = self._append(transaction, index, release)
            self._update_witness(link)
            return link

    def lacking(self) -> int:
        """Ballots that the witness saw and the ledger does not know of."""
        with self._lock:
            seen = self._last_seen()
            known = self._synchronised(self._file.links).ballots
            return 0 if seen is None else max(0, seen.ballots - known)

    def _added(
        self, transaction: LedgerTransaction, index: LedgerIndex, release: Release, budget: Budget
    ) -> Link:
        if unpaid := index.unpaid_reason(release):
            raise ValueError(unpaid)
        if release.costs and release.unit is not budget.unit:
            raise ValueError(
                f"a budget per {budget.unit} cannot pay for a release per {release.unit}"
            )
        # Asked within the transaction: two processes cannot both take what is left.
        exceeded = index.would_exceed(
            release.dataset, release.task_digest, release.events, budget, release.plan
        )
        if exceeded is not None:
            raise Overspent(exceeded)
        return self._append(transaction, index, release)

    def _append(self, transaction: LedgerTransaction, index: LedgerIndex, release: Release) -> Link:
        now = self._clock().isoformat(timespec="milliseconds")
        stamp = {"at": now, "patients_kept": self._patients.get(release.dataset, 0)}
        entry = release.model_copy(update=stamp).model_dump(mode="json")
        link = append(index.head, entry)
        transaction.write(link)
        crash_point("ballot-paying")
        return link

    # -- whether they are whole ---------------------------------------------------------------------------

    def _current(self) -> LedgerIndex:
        # The witness first: the ledger is written before it and can only be ahead.
        seen = self._witness.read()
        index = self._synchronised(self._file.links)
        self._check_witness(index, seen)
        return index

    def _synchronised(self, links: Callable[[int], list[Link]]) -> LedgerIndex:
        """The index with everything added since it was last looked at; the new part is verified."""
        known = self._index.head
        # The last one known is read again: it must still be there.
        fresh = links(max(1, known.sequence))
        if known.sequence:
            last, fresh = fresh[:1], fresh[1:]
            if [link.hash for link in last] != [known.hash]:
                return self._reload(links(1), known)
        if not _follow(known, fresh):
            return self._reload(links(1), known)
        for link in fresh:
            self._index.add(link)
        return self._index

    def _reload(self, links: list[Link], known: Head) -> LedgerIndex:
        broken = first_break(links)
        if broken is not None:
            raise Refusal(LEDGER_BROKEN, why=broken.why)
        index = LedgerIndex(links)
        # What this process has seen before is a witness, too.
        self._check_witness(index, _witnessed(known))
        self._index = index
        return index

    def _check_witness(self, index: LedgerIndex, seen: WitnessedHead | None) -> None:
        """Raises if the chain has not passed the place where it was seen to end."""
        if seen is None:
            if index.entries:
                why = f"its witness {self._witness.path} is missing"
                raise Refusal(LEDGER_ROLLED_BACK, why=why)
            return
        if index.contains(seen.head) or seen.head in index.abandoned_heads:
            return
        if not self._file.exists:
            why = f"{self._file.path} is missing, though it had {seen.sequence} entries"
            raise Refusal(LEDGER_ROLLED_BACK, why=why)
        broken = first_break([entry.link for entry in index.entries], [seen.head])
        why = (
            f"entry {seen.sequence} is not the one that was there" if broken is None else broken.why
        )
        cut = broken is not None and broken.damage is Damage.CUT_SHORT
        raise Refusal(LEDGER_ROLLED_BACK if cut else LEDGER_BROKEN, why=why)

    def _last_seen(self) -> WitnessedHead | None:
        """What the witness saw, if it still knows; for what must go on after a loss."""
        try:
            return self._witness.read()
        except Refusal as refusal:
            if not refusal.is_a(LEDGER_ROLLED_BACK):
                raise
            return None

    def _write_first_witness(self) -> None:
        """Before the first entry is there, a witness is: one that is missing later has been lost."""
        self._witness.write(_witnessed(Head()))

    def _update_witness(self, link: Link) -> None:
        """Tells the witness where the ledger ends, one process after the other."""
        with self._file.writing() as transaction:
            index = self._synchronised(transaction.links)
            if not index.contains(Head(link.sequence, link.hash)):
                why = f"entry {link.sequence} was written and is not there"
                raise Refusal(LEDGER_BROKEN, why=why)
            seen = _witnessed(index.head, index.ballots)
            if self._last_seen() != seen:
                self._witness.write(seen)


def _follow(head: Head, links: list[Link]) -> bool:
    """True if the links continue a chain that ended at `head`."""
    for link in links:
        if link.sequence != head.sequence + 1 or link.previous != head.hash or not link.sound:
            return False
        head = Head(link.sequence, link.hash)
    return True


def _witnessed(head: Head, ballots: int = 0) -> WitnessedHead:
    return WitnessedHead(sequence=head.sequence, hash=head.hash, ballots=ballots)
