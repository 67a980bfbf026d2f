"""A hash chain: every entry carries the hash of the one before, so editing, removing or moving one is noticed.

    hash(n) = SHA-256(hash(n-1) + "\\n" + canonical JSON of entry n),  hash(0) = 64 zeros

Both ends have one: the coordinator of administrative actions, a hospital of everything it sent and received. A
chain cannot show that it was truncated or completely rewritten; a head stored elsewhere can.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

GENESIS = "0" * 64


@dataclass(frozen=True)
class Link:
    """One entry with its place in the chain; `sequence` counts from 1."""

    sequence: int
    entry: Mapping[str, object]
    previous: str
    hash: str

    @property
    def sound(self) -> bool:
        """True if `hash` is that of `previous` and `entry`."""
        return self.hash == link_hash(self.previous, self.entry)


@dataclass(frozen=True)
class Head:
    """Number and hash of the last entry of a chain at some time."""

    sequence: int = 0
    hash: str = GENESIS


class Damage(StrEnum):
    """How a chain was damaged."""

    EDITED = "edited"
    REMOVED = "removed"
    MOVED = "moved"
    INSERTED = "inserted"
    CUT_SHORT = "cut short"
    REWRITTEN = "rewritten"
    """An entry was replaced and the hashes after it recomputed."""


@dataclass(frozen=True)
class Broken:
    """The first damaged place of a chain, the kind of damage, and how it shows, as a clause of a sentence."""

    sequence: int
    damage: Damage
    why: str


def link_hash(previous: str, entry: Mapping[str, object]) -> str:
    """The hash of `entry` after the entry with the hash `previous`."""
    text = json.dumps(entry, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(f"{previous}\n{text}".encode()).hexdigest()


def append(last: Head, entry: Mapping[str, object]) -> Link:
    """The link that follows `last`; `Head()` for the first."""
    return Link(last.sequence + 1, entry, last.hash, link_hash(last.hash, entry))


def head_of(links: Sequence[Link]) -> Head:
    """The head of a chain, `Head()` if it is empty."""
    return Head(links[-1].sequence, links[-1].hash) if links else Head()


def first_break(
    links: Sequence[Link], known: Iterable[Head] = (), at_most: int | None = None
) -> Broken | None:
    """The first place where the chain is broken, or None.

    `links` in stored order. `known` are earlier heads of the chain, stored where a forger cannot change them;
    `at_most` is the highest number of entries it can have.
    """
    known = sorted(known, key=lambda head: head.sequence)
    previous = GENESIS
    for place, link in enumerate(links):
        if link.sequence != place + 1 or link.previous != previous or not link.sound:
            return _diagnose(links, place, known)
        previous = link.hash
    for head in known:
        if broken := _against(head, links):
            return broken
    if at_most is not None and len(links) > at_most:
        added = _entries(at_most + 1, len(links), "put in")
        return Broken(at_most + 1, Damage.INSERTED, f"{added} behind the end")
    return None


def _against(head: Head, links: Sequence[Link]) -> Broken | None:
    """How a chain that verifies differs from one that once ended in `head`."""
    if head.sequence > len(links):
        gone = _entries(len(links) + 1, head.sequence, "cut off")
        return Broken(len(links) + 1, Damage.CUT_SHORT, f"{gone} at the end")
    if head.sequence and links[head.sequence - 1].hash != head.hash:
        why = f"entry {head.sequence} is not the one that was there; it or one before it was exchanged and every hash behind it made to fit"
        return Broken(head.sequence, Damage.REWRITTEN, why)
    return None


def _diagnose(links: Sequence[Link], place: int, known: Sequence[Head]) -> Broken:
    """The damage at `place`, the first index that does not verify."""
    link, number = links[place], place + 1
    before, rest = links[:place], links[place + 1 :]
    previous = before[-1].hash if before else GENESIS
    if link.sound and link.previous == previous:
        why = f"entry {number} bears the number {link.sequence}"
        return Broken(number, Damage.EDITED, why)
    if link.hash in {other.hash for other in before}:
        return Broken(number, Damage.INSERTED, f"entry {number} is a copy of an earlier one")
    if out_of_place := _out_of_place(link, number, previous, rest):
        return out_of_place
    if link.sequence > number:
        gone = _entries(number, link.sequence - 1, "removed")
        return Broken(number, Damage.REMOVED, gone)
    if not link.sound:
        why = f"entry {number} was edited after it was written"
        return Broken(number, Damage.EDITED, why)
    return _fork(links, place, known)


def _out_of_place(link: Link, number: int, previous: str, rest: Sequence[Link]) -> Broken | None:
    """The damage if the entry that belongs after `previous` comes later, among `rest`."""
    if link.hash in {link_hash(previous, other.entry) for other in rest}:
        why = f"entry {number} has changed places with a later one"
        return Broken(number, Damage.MOVED, why)
    if previous not in {other.previous for other in rest if other.sound}:
        return None
    if link.sound and link.previous in {other.hash for other in rest}:
        why = f"entry {number} has been moved behind a later one"
        return Broken(number, Damage.MOVED, why)
    why = f"entry {number} was put in; the one that belongs there follows later"
    return Broken(number, Damage.INSERTED, why)


def _fork(links: Sequence[Link], place: int, known: Sequence[Head]) -> Broken:
    """The damage before `place`, whose entry is sound but follows another one than it was written after."""
    link, number = links[place], place + 1
    origins = {GENESIS: 0} | {before.hash: before.sequence for before in links[:place]}
    origin = origins.get(link.previous)
    if origin is not None:
        followed = {other.previous for other in links[place + 1 :]}
        if link.hash in followed | {head.hash for head in known}:
            added = _entries(origin + 1, place, "put in")
            return Broken(origin + 1, Damage.INSERTED, added)
        return Broken(number, Damage.INSERTED, _entries(number, number, "put in"))
    return _exchanged_or_removed(links, place, known)


def _exchanged_or_removed(links: Sequence[Link], place: int, known: Sequence[Head]) -> Broken:
    """The damage before `place`, whose entry follows one that is nowhere in the chain."""
    number = place + 1
    places = {other.hash: at + 1 for at, other in enumerate(links)}
    moved_up = [head.sequence - places[head.hash] for head in known if head.hash in places]
    if number == 1 or any(shift > 0 for shift in moved_up):
        why = f"what stood before entry {number} was removed and the rest numbered anew"
        return Broken(number, Damage.REMOVED, why)
    why = f"entry {place} is not the one that entry {number} was written behind"
    if not moved_up:
        why += (
            "; it was exchanged, or what stood between them was removed and the rest numbered anew"
        )
    return Broken(place, Damage.REWRITTEN, why)


def _entries(first: int, last: int, what: str) -> str:
    """`entry 3 was removed`, `entries 3 to 5 were removed`."""
    return (
        f"entry {first} was {what}" if first == last else f"entries {first} to {last} were {what}"
    )
