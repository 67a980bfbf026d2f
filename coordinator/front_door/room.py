"""Who may hold how many connections, and whose is closed when there are too many. Pure.

A connection *waits* until its TLS handshake is done. Whoever waits is the first to go: an honest handshake takes
a moment, so what has waited longest is idle or slow on purpose. Between addresses it is the one with most.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from enum import IntEnum

from coordinator.metrics.connections import Turned


class Stage(IntEnum):
    """How far a connection has come; of an address the least advanced goes first."""

    SILENT = 0
    """Has not sent the first record of a handshake."""
    SHAKING = 1
    """Has, and the handshake is under way."""
    OPEN = 2
    """The handshake is done."""


@dataclass(frozen=True)
class Caps:
    """Connections of one port at most."""

    total: int
    per_address: int

    @property
    def waiting(self) -> int:
        """Those whose handshake is not done; half, so that they never keep out who is in."""
        return max(1, self.total // 2)


class _Site:
    """The connections of one address, oldest first."""

    def __init__(self) -> None:
        self.stages: tuple[dict[Hashable, None], ...] = ({}, {}, {})

    @property
    def waiting(self) -> int:
        return len(self.stages[Stage.SILENT]) + len(self.stages[Stage.SHAKING])

    @property
    def held(self) -> int:
        return self.waiting + len(self.stages[Stage.OPEN])

    def oldest(self, stages: Iterable[Stage]) -> Hashable | None:
        return next((one for stage in stages for one in self.stages[stage]), None)


_WAITING = (Stage.SILENT, Stage.SHAKING)


class Room:
    """The connections of one port. Not safe for several threads."""

    def __init__(self, caps: Caps) -> None:
        self._caps = caps
        self._sites: dict[str, _Site] = {}
        self._places: dict[Hashable, tuple[str, Stage]] = {}
        self._waiting = 0

    def __len__(self) -> int:
        return len(self._places)

    def enter(self, connection: Hashable, address: str) -> Turned | Hashable | None:
        """Takes a connection in. None: there was room; a `Turned`: it is refused; else whose place it got.

        The one that lost its place is forgotten here; the caller closes it.
        """
        loser = self._loser(address)
        if isinstance(loser, Turned):
            return loser
        if loser is not None:
            self.leave(loser)
        self._put(connection, address, Stage.SILENT)
        return loser

    def advance(self, connection: Hashable, stage: Stage) -> None:
        """Notes that a connection has come further."""
        place = self._places.get(connection)
        if place is not None and stage > place[1]:
            self.leave(connection)
            self._put(connection, place[0], stage)

    def leave(self, connection: Hashable) -> None:
        """Forgets a connection; nothing happens if it is not known."""
        place = self._places.pop(connection, None)
        if place is None:
            return
        address, stage = place
        site = self._sites[address]
        del site.stages[stage][connection]
        self._waiting -= stage is not Stage.OPEN
        if not site.held:
            del self._sites[address]

    def _put(self, connection: Hashable, address: str, stage: Stage) -> None:
        self._places[connection] = (address, stage)
        self._sites.setdefault(address, _Site()).stages[stage][connection] = None
        self._waiting += stage is not Stage.OPEN

    def _loser(self, address: str) -> Turned | Hashable | None:
        """Who has to go so that `address` may have one more."""
        site = self._sites.get(address)
        if site is not None and site.held >= self._caps.per_address:
            return site.oldest(_WAITING) or Turned.ADDRESS_FULL
        full = len(self._places) >= self._caps.total
        if self._waiting >= self._caps.waiting or (full and self._waiting):
            return max(self._sites.values(), key=lambda site: site.waiting).oldest(_WAITING)
        if not full:
            return None
        busiest = max(self._sites.values(), key=lambda site: site.held)
        # One more for the newcomer and one less there must leave the other with no less.
        if busiest.held <= (site.held if site else 0) + 1:
            return Turned.PORT_FULL
        return busiest.oldest([Stage.OPEN])
