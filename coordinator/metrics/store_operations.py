"""Operations of this server on its database: how many, with what outcome, how long they wait and take."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram

from coordinator.metrics.calls import SHORT_SECONDS
from wire.errors import STORE_UNAVAILABLE, Refusal


class StoreMetrics:
    """Operations on the store, by the name of the method in our code."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._operations = Counter(
            "consilium_store_operations",
            "Operations by what became of them: done, refused, unavailable or failed.",
            ["operation", "outcome"],
            registry=registry,
        )
        self._seconds = Histogram(
            "consilium_store_operation_seconds",
            "How long an operation took, repetitions included.",
            ["operation"],
            buckets=SHORT_SECONDS,
            registry=registry,
        )
        self._waiting = Histogram(
            "consilium_store_waiting_seconds",
            "How long an operation waited for those before it.",
            buckets=SHORT_SECONDS,
            registry=registry,
        )
        self._repeated = Counter(
            "consilium_store_repetitions",
            "Transactions that were undone in favour of another replica's and made again.",
            registry=registry,
        )

    def count_repetition(self) -> None:
        """Counts a transaction that lost a serialization conflict or deadlock and is made again."""
        self._repeated.inc()

    @contextmanager
    def measure(self, call: Callable[..., Any], asked: float) -> Iterator[None]:
        """Counts the block as one operation that was asked for at `asked`, by `perf_counter`."""
        name = getattr(call, "__qualname__", type(call).__name__).rpartition("<locals>.")[2]
        outcome, started = "done", perf_counter()
        self._waiting.observe(started - asked)
        try:
            yield
        except Refusal as refusal:
            outcome = "unavailable" if refusal.is_a(STORE_UNAVAILABLE) else "refused"
            raise
        except BaseException:
            outcome = "failed"
            raise
        finally:
            self._operations.labels(name, outcome).inc()
            self._seconds.labels(name).observe(perf_counter() - started)
