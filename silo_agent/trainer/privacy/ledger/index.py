"""In-memory index of a ledger: its entries in order, its ballots, and its accounts."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pydantic import ValidationError

from silo_agent.trainer.privacy.budget import Budget, Exceeded, added_up, exceeded
from silo_agent.trainer.privacy.ledger.accounts import Accounts
from silo_agent.trainer.privacy.ledger.release import Kind, Release, costly
from wire.errors import LEDGER_BROKEN, Refusal
from wire.privacy.events import Event
from wire.runtime.chain import Head, Link


@dataclass(frozen=True)
class Entry:
    """A release in its place in the chain."""

    link: Link
    release: Release


class LedgerIndex:
    """Append-only; the caller verifies each link before adding it. Not thread-safe."""

    def __init__(self, links: Iterable[Link] = ()) -> None:
        self.entries: list[Entry] = []
        self.ballots = 0
        """Ballots of every kind that left: paid, repeated, abstaining, written off."""
        self.abandoned_heads: set[Head] = set()
        self.charged: dict[str, int] = {}
        """Data sets that something was charged to, with the most hashes of patients that an entry speaks of."""
        self._of_ballot: dict[tuple[str, int, str], list[Entry]] = {}
        self.accounts = Accounts()
        self._bases: set[str] = set()
        self._cast: set[tuple[str, str]] = set()
        for link in links:
            self.add(link)

    @property
    def head(self) -> Head:
        """Where it ends."""
        last = self.entries[-1].link if self.entries else None
        return Head() if last is None else Head(last.sequence, last.hash)

    def add(self, link: Link) -> None:
        """Takes in the next link; LEDGER_BROKEN if it is not an entry this version knows."""
        try:
            release = Release.model_validate(link.entry)
        except ValidationError:
            why = f"entry {link.sequence} says something this version does not know"
            raise Refusal(LEDGER_BROKEN, why=why) from None
        entry = Entry(link, release)
        self.entries.append(entry)
        self.ballots += release.ballots
        if release.lost is not None:
            self.abandoned_heads.add(release.lost)
        if release.kind in (Kind.BALLOT, Kind.ABSTENTION, Kind.REPETITION):
            self._of_ballot.setdefault(_ballot(release), []).append(entry)
        if release.kind is Kind.BALLOT:
            self._cast.add((release.task_digest, release.ballot_digest))
        if release.costs:
            known = self.charged.get(release.dataset, 0)
            self.charged[release.dataset] = max(known, release.patients_kept)
        self._bases.update(release.pays_for)
        self.accounts.add(release)

    def contains(self, head: Head) -> bool:
        """True if the chain ended at `head` once."""
        if not 0 < head.sequence <= len(self.entries):
            return head == Head()
        return self.entries[head.sequence - 1].link.hash == head.hash

    def would_exceed(
        self,
        dataset: str,
        task_digest: str,
        events: Iterable[Event],
        budget: Budget,
        plan: Iterable[Event] = (),
    ) -> Exceeded | None:
        """The budget that these events would exceed, if any; `plan` is all that the task will release."""
        return exceeded(
            budget,
            added_up(events),
            self.accounts.account(dataset, task_digest),
            self.accounts.account(dataset),
            task_digest,
            added_up(plan),
        )

    def has(self, task_digest: str, round_number: int, ballot_digest: str) -> bool:
        """True if this very ballot of this round is on the books, whatever it cost."""
        return (task_digest, round_number, ballot_digest) in self._of_ballot

    def paid_basis(self, basis: str) -> bool:
        """True if events were charged for this model kept at home."""
        return basis in self._bases

    def find(self, release: Release) -> Entry | None:
        """The entry that has this ballot on the books already, for what it costs."""
        for entry in self._of_ballot.get(_ballot(release), ()):
            same = entry.release.dataset == release.dataset
            # A free entry never covers a ballot that has to be paid for.
            if same and (entry.release.events == release.events or not release.costs):
                return entry
        return None

    def unpaid_reason(self, release: Release) -> str:
        """Why a release that claims to be free is not; empty if it is, or if it is paid for now."""
        if release.kind is Kind.REPETITION:
            if (release.task_digest, release.ballot_digest) in self._cast:
                return ""
            return "a repetition repeats no ballot of its task that is on the books"
        if release.kind is not Kind.BALLOT:
            return ""
        if not costly(release.events) and not release.made_from:
            return "a ballot that costs nothing rests on no model that was paid for"
        paid = self._bases.union(release.pays_for)
        if not paid.issuperset(release.made_from):
            return "a ballot rests on a model that neither its events nor earlier ones paid for"
        return ""


def _ballot(release: Release) -> tuple[str, int, str]:
    return (release.task_digest, release.round, release.ballot_digest)
