"""A bell: those who wait hear the next ring; nobody has to be listening."""

from __future__ import annotations

import asyncio


class Bell:
    """Wakes every waiter of one event loop. Take a `ticket` before you look, so that no ring is missed."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def ticket(self) -> asyncio.Event:
        """Something to wait on that is set by the next ring after this call."""
        return self._next

    def ring(self) -> None:
        """Wakes everyone who holds a ticket."""
        rung, self._next = self._next, asyncio.Event()
        rung.set()


async def either(*tickets: asyncio.Event, seconds: float) -> None:
    """Returns at the next ring of any of the bells, or after `seconds`."""
    waits = [asyncio.ensure_future(ticket.wait()) for ticket in tickets]
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
