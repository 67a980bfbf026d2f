"""The threads that touch the database, so that the event loop never waits for a disk or another machine."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

import structlog
from prometheus_client import CollectorRegistry

from coordinator.metrics_calls import StoreMetrics
from coordinator.store.engine import lost_a_race
from wire.errors import STORE_UNAVAILABLE, Refusal

log = structlog.get_logger()

P = ParamSpec("P")
T = TypeVar("T")

_SHARED_THREADS = 4
_ATTEMPTS = 5
_PAUSE_SECONDS = 0.05


class StoreThread:
    """Runs blocking store calls: one at a time, in order, or a few side by side if the store is shared.

    A call is one transaction, or several that may be repeated: if the database undid it in favour of another
    replica's, it is made again.
    """

    def __init__(self, *, shared: bool = False, metrics: StoreMetrics | None = None) -> None:
        threads = _SHARED_THREADS if shared else 1
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="store")
        self._metrics = metrics or StoreMetrics(CollectorRegistry())

    async def __call__(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Awaits `call(*args, **kwargs)`; a cancelled caller does not cancel a transaction."""
        return await asyncio.shield(asyncio.wrap_future(self._submit(call, *args, **kwargs)))

    def from_thread(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The same for one who waits in a thread of their own, never in one of these."""
        return self._submit(call, *args, **kwargs).result()

    def close(self) -> None:
        """Waits for what has begun."""
        self._pool.shutdown(wait=True)

    def _submit(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        asked = time.perf_counter()

        def work() -> T:
            with self._metrics.operating(call, asked):
                return self._persist(lambda: call(*args, **kwargs))

        return self._pool.submit(work)

    def _persist(self, call: Callable[[], T]) -> T:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return call()
            except Refusal as refusal:
                if refusal.is_a(STORE_UNAVAILABLE):
                    # Callers are only told that it is so; the operator needs to know why.
                    log.error("store_unavailable", why=str(refusal.__cause__ or ""))
                raise
            except Exception as error:
                if not lost_a_race(error):
                    raise
                self._metrics.repeated.inc()
                log.warning("transaction_repeated", attempt=attempt, kind=type(error).__name__)
                time.sleep(random.uniform(0, _PAUSE_SECONDS * attempt))  # noqa: S311  not a secret
        raise Refusal(STORE_UNAVAILABLE)
