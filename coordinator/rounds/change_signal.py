"""A signal that something changed: wakes every coroutine that waits for the next change."""

from __future__ import annotations

import asyncio


class ChangeSignal:
    """Wakes every waiter of one event loop; a change nobody waits for is lost.

    Take a `waiter` before reading the state it guards, so that no change is missed in between.
    """

    def __init__(self) -> None:
        self._next = asyncio.Event()

    def waiter(self) -> asyncio.Event:
        """An event that the next `fire` after this call sets."""
        return self._next

    def fire(self) -> None:
        """Sets every waiter handed out since the last time."""
        fired, self._next = self._next, asyncio.Event()
        fired.set()


async def wait_for_any(*waiters: asyncio.Event, seconds: float | None) -> None:
    """Returns when any of the waiters is set, or after `seconds`; None waits for ever."""
    waits = [asyncio.ensure_future(waiter.wait()) for waiter in waiters]
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
