"""The one thread in which the private side reads its data, trains and votes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


class Closed(Exception):
    """The work was not begun and will not be: the trainer is about to stop."""


class Workbench:
    """One piece of work at a time, in the order they were asked for.

    Whoever leaves takes back what has not begun. What has begun goes on, and the next piece waits for it: a
    round trained twice at the same time would be paid for twice.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="workbench")
        self._closed = False

    async def __call__(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `work` gives; Closed if it is not begun."""
        if self._closed:
            raise Closed
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        try:
            return await loop.run_in_executor(self._thread, partial(work, *args, **kwargs))
        except asyncio.CancelledError:
            if self._closed and task is not None and not task.cancelling():
                raise Closed from None
            raise

    async def close(self) -> None:
        """Begins nothing more, and returns when what has begun is done."""
        self._closed = True
        await asyncio.to_thread(self._thread.shutdown, wait=True, cancel_futures=True)
