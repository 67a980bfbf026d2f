"""How often the tasks of an agent together ask the trainer, however many the coordinator has proposed."""

from __future__ import annotations

import asyncio


class Pace:
    """Lets one caller through every `seconds`, in the order of their coming."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._free_at = 0.0

    async def turn(self) -> None:
        """Returns when it is the caller's turn: at once if nobody was let through just before."""
        now = asyncio.get_running_loop().time()
        mine = max(now, self._free_at)
        self._free_at = mine + self._seconds
        if mine > now:
            await asyncio.sleep(mine - now)
