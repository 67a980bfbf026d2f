"""A hash chain: every entry carries the hash of the one before, so nothing is edited, removed or moved unseen.

    hash(n) = SHA-256(hash(n-1) + "\\n" + canonical JSON of entry n),  hash(0) = 64 zeros

Both ends keep one: the coordinator of every act, a hospital of everything that left it and came to it. A
chain cannot show that its own end was cut off or that all of it was written anew; a head kept elsewhere can.
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
        """True if the hash is that of this entry behind the one it names."""
        return self.hash == link_hash(self.previous, self.entry)


@dataclass(frozen=True)
class Head:
    """Where a chain is known to have ended: number and hash of its last entry."""

    sequence: int = 0
    hash: str = GENESIS


class Damage(StrEnum):
    """What was done to a chain."""

    EDITED = "edited"
    REMOVED = "removed"
    MOVED = "moved"
    INSERTED = "inserted"
    CUT_SHORT = "cut short"
    REWRITTEN = "rewritten"
    """An entry was exchanged and the hashes made to fit."""


@dataclass(frozen=True)
class Broken:
    """Where a chain stops being one, what was done there, and how that is seen, in half a sentence."""

    sequence: int
    damage: Damage
    why: str


def link_hash(previous: str, entry: Mapping[str, object]) -> str:
    """The hash of `entry` behind `previous`."""
    text = json.dumps(entry, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(f"{previous}\n{text}".encode()).hexdigest()


def append(last: Head, entry: Mapping[str, object]) -> Link:
    """The link that follows `last`; `Head()` is the beginning."""
    return Link(last.sequence + 1, entry, last.hash, link_hash(last.hash, entry))


def head_of(links: Sequence[Link]) -> Head:
    """Where a chain ends."""
    return Head(links[-1].sequence, links[-1].hash) if links else Head()


def first_break(
    links: Sequence[Link], known: Iterable[Head] = (), at_most: int | None = None
) -> Broken | None:
    """The first place where the chain is broken, or None.

    `links` in the order in which they stand. `known` are places the chain is known to have passed, kept where
    a forger does not reach; `at_most` is how many entries it can have.
    """
    known = sorted(known, key=lambda head: head.sequence)
    previous = GENESIS
    for place, link in enumerate(links):
        if link.sequence != place + 1 or link.previous != previous or not link.sound:
            return _diagnosed(links, place, known)
        previous = link.hash
    for head in known:
        if head.sequence > len(links):
            gone = _entries(len(links) + 1, head.sequence, "cut off")
            return Broken(len(links) + 1, Damage.CUT_SHORT, f"{gone} at the end")
        if head.sequence and links[head.sequence - 1].hash != head.hash:
            why = f"entry {head.sequence} is not the one that was there; it or one before it was exchanged and every hash behind it made to fit"
            return Broken(head.sequence, Damage.REWRITTEN, why)
    if at_most is not None and len(links) > at_most:
        added = _entries(at_most + 1, len(links), "put in")
        return Broken(at_most + 1, Damage.INSERTED, f"{added} behind the end")
    return None


def _diagnosed(links: Sequence[Link], place: int, known: Sequence[Head]) -> Broken:
    """What was done at `place`, the first that does not fit: where are the entries that belong here?"""
    link, number = links[place], place + 1
    before, rest = links[:place], links[place + 1 :]
    previous = before[-1].hash if before else GENESIS
    if link.sound and link.previous == previous:
        why = f"entry {number} bears the number {link.sequence}"
        return Broken(number, Damage.EDITED, why)
    if any(other.hash == link.hash for other in before):
        return Broken(number, Damage.INSERTED, f"entry {number} is a copy of an earlier one")
    if any(link_hash(previous, other.entry) == link.hash for other in rest):
        why = f"entry {number} has changed places with a later one"
        return Broken(number, Damage.MOVED, why)
    if any(other.sound and other.previous == previous for other in rest):
        if link.sound and any(other.hash == link.previous for other in rest):
            why = f"entry {number} has been moved behind a later one"
            return Broken(number, Damage.MOVED, why)
        why = f"entry {number} was put in; the one that belongs there follows later"
        return Broken(number, Damage.INSERTED, why)
    if link.sequence > number:
        gone = _entries(number, link.sequence - 1, "removed")
        return Broken(number, Damage.REMOVED, gone)
    if not link.sound:
        why = f"entry {number} was edited after it was written"
        return Broken(number, Damage.EDITED, why)
    return _fork(links, place, known)


def _fork(links: Sequence[Link], place: int, known: Sequence[Head]) -> Broken:
    """What was done before `place`, whose entry is sound but was written behind another one."""
    link, number = links[place], place + 1
    origin = 0 if link.previous == GENESIS else None
    for before in links[:place]:
        if before.hash == link.previous:
            origin = before.sequence
    if origin is not None:
        carried_on = any(other.previous == link.hash for other in links[place + 1 :])
        if carried_on or any(head.hash == link.hash for head in known):
            added = _entries(origin + 1, place, "put in")
            return Broken(origin + 1, Damage.INSERTED, added)
        return Broken(number, Damage.INSERTED, _entries(number, number, "put in"))
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
