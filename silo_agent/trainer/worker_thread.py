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
    """The call was not started because the thread is shutting down."""


class WorkerThread:
    """Runs calls one at a time, in the order of submission.

    Cancelling a caller cancels a call that has not started. A started call runs to its end and blocks the next one:
    two concurrent trainings of one round would both be debited.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="trainer-worker")
        self._closed = False

    async def __call__(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The result of `work`; raises Closed if it was not started."""
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
        """Starts no further call; returns when the running one has ended."""
        self._closed = True
        await asyncio.to_thread(self._thread.shutdown, wait=True, cancel_futures=True)
