"""The coordinator's own privacy ledger as a whole: what was spent, and whether the audit chain agrees.

The ledger holds what was done (`consensus.party_noise.PartyRelease`); ε is derived from it here, each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from coordinator.consensus.party_noise import PartyEntry, PartyRelease
from wire.errors import PARTY_LEDGER_BROKEN, Refusal
from wire.privacy.declaration import MICRO
from wire.runtime.chain import Head, Link


@dataclass(frozen=True)
class Spent:
    """What all noisy consensuses of a task, or of all tasks, say of any one silo at most."""

    consensuses: int
    """Each draw of one."""
    answers: int
    """Rows, counted once per consensus."""
    epsilon: float
    """At the δ asked for."""
    pure_epsilon: float
    """At δ = 0."""


def spent(entries: Sequence[PartyEntry], delta: float) -> Spent:
    """The composed cost of the entries for a silo that voted in all of them.

    A task's noise is fixed before it starts. Tasks are chosen in sight of earlier ones, so several of them are
    counted by the privacy filter, which holds for that.
    """
    # Only here: a server derives nothing, and needs no scipy for that.
    from wire.privacy import accounting, privacy_filter

    rule = accounting if len({entry.task for entry in entries}) <= 1 else privacy_filter

    releases = [entry.release for entry in entries]
    return Spent(
        consensuses=sum(release.draws for release in releases),
        answers=sum(release.answers for release in releases),
        epsilon=rule.epsilon([release.event for release in releases], delta),
        pure_epsilon=sum(release.pure_epsilon for release in releases),
    )


def by_task(entries: Sequence[PartyEntry]) -> dict[str, list[PartyEntry]]:
    """The entries of each task, in the order given."""
    found: dict[str, list[PartyEntry]] = {}
    for entry in entries:
        found.setdefault(entry.task, []).append(entry)
    return found


def require_agreement(entries: Sequence[PartyEntry], links: Sequence[Link], before: Head) -> None:
    """Refuses (PARTY_LEDGER_BROKEN) a ledger that says anything else than the audit chain.

    `before` is where the chain ended before the ledger was read: what was published since may be missing here.
    """
    held = {(f"task/{entry.task}", entry.round): entry.release for entry in entries}
    audited = {}
    for link in links:
        release = PartyRelease.in_audit(link.entry["details"])
        if release is None:
            continue
        place = str(link.entry["subject"]), _round(link)
        audited[place] = release
        if held.get(place) != release and (place in held or link.sequence <= before.sequence):
            raise _broken(*place, f"entry {link.sequence} of the record has {_words(release)}")
    for place in held.keys() - audited.keys():
        raise _broken(*place, f"only the ledger has {_words(held[place])}")


def _round(link: Link) -> int:
    details = link.entry["details"]
    round_number = details.get("round") if isinstance(details, dict) else None
    return round_number if isinstance(round_number, int) else 0


def _words(release: PartyRelease) -> str:
    gamma = release.gamma_micros / MICRO
    often = f", drawn {release.draws} times" if release.draws > 1 else ""
    return f"{release.rows} rows at γ = {gamma:g} and sensitivity {release.sensitivity}{often}"


def _broken(subject: str, round_number: int, why: str) -> Refusal:
    task = subject.removeprefix("task/")
    return Refusal(PARTY_LEDGER_BROKEN, task=task, round=round_number, why=why)
