"""The threads that access the database, so that the event loop never waits for a disk or another machine."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ParamSpec, Protocol, TypeVar

import structlog

from coordinator.store.engine import lost_a_race
from wire.errors import STORE_UNAVAILABLE, Refusal

log = structlog.get_logger()

P = ParamSpec("P")
T = TypeVar("T")

_SHARED_THREADS = 4
_ATTEMPTS = 5
_PAUSE_SECONDS = 0.05


class Observer(Protocol):
    """Measures the store's operations."""

    def measure(self, call: Callable[..., Any], asked: float) -> AbstractContextManager[None]:
        """Measures the block as one operation that was submitted at `asked`, by `perf_counter`."""

    def count_repetition(self) -> None:
        """Counts a transaction that lost a serialization conflict or deadlock and is made again."""


class _Unobserved:
    def measure(self, call: Callable[..., Any], asked: float) -> AbstractContextManager[None]:
        return nullcontext()

    def count_repetition(self) -> None:
        pass


class StoreExecutor:
    """Runs blocking store calls: one at a time, in order, or a few side by side if the store is shared.

    A call is one transaction, or several that may be repeated: one that lost a serialization conflict or a deadlock
    against another replica is made again.
    """

    def __init__(self, *, shared: bool = False, observer: Observer | None = None) -> None:
        threads = _SHARED_THREADS if shared else 1
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="store")
        self._observer: Observer = observer or _Unobserved()

    async def __call__(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Awaits `call(*args, **kwargs)`; a cancelled caller does not cancel a transaction."""
        return await asyncio.shield(asyncio.wrap_future(self._submit(call, *args, **kwargs)))

    def from_thread(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """The same for a caller that may block: in a thread of its own, never in one of these."""
        return self._submit(call, *args, **kwargs).result()

    def close(self) -> None:
        """Waits for the calls that were submitted; takes no more."""
        self._pool.shutdown(wait=True)

    def _submit(self, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        asked = time.perf_counter()

        def work() -> T:
            with self._observer.measure(call, asked):
                return self._with_repetition(lambda: call(*args, **kwargs))

        return self._pool.submit(work)

    def _with_repetition(self, call: Callable[[], T]) -> T:
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return call()
            except Refusal as refusal:
                if refusal.is_a(STORE_UNAVAILABLE):
                    # Callers get no more than the code; the operator needs the cause.
                    log.error("store_unavailable", why=str(refusal.__cause__ or ""))
                raise
            except Exception as error:
                if not lost_a_race(error):
                    raise
                self._observer.count_repetition()
                log.warning("transaction_repeated", attempt=attempt, kind=type(error).__name__)
                time.sleep(random.uniform(0, _PAUSE_SECONDS * attempt))  # noqa: S311  not a secret
        raise Refusal(STORE_UNAVAILABLE)
