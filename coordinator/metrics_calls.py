"""How calls go and how long they take: those of members to this server, and this server's to its database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any, Protocol

import grpc
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from wire.errors import STORE_UNAVAILABLE, Refusal

_SHORT = (0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10, 60)
"""Bounds for what should be over at once, in seconds."""
_STATUS = {status.value[0]: status.name for status in grpc.StatusCode}


class Answered(Protocol):
    """A call's context, as far as its end is concerned."""

    def code(self) -> Any:
        """The status the call was aborted with, as gRPC's enumeration or as its number."""


class CallMetrics:
    """Calls by method, of those that exist: their number is fixed."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._handled = Counter(
            "consilium_grpc_handled",
            "Calls answered, by method and gRPC status.",
            ["method", "status"],
            registry=registry,
        )
        self._seconds = Histogram(
            "consilium_grpc_handling_seconds",
            "From the arrival of a call to its answer; of a stream, to its end.",
            ["method"],
            buckets=_SHORT,
            registry=registry,
        )
        self._open = Gauge(
            "consilium_grpc_calls_in_progress",
            "Calls being answered; open watch streams among them.",
            ["method"],
            registry=registry,
        )

    @contextmanager
    def answering(self, method: str, context: Answered) -> Iterator[None]:
        """Counts the block as one call of `method`, a full name such as /consilium.v1.RoundsService/Watch."""
        name = method.rpartition(".")[2]
        status, started = "OK", perf_counter()
        with self._open.labels(name).track_inprogress():
            try:
                yield
            except grpc.aio.AbortError:
                status = _name(context.code())
                raise
            except (asyncio.CancelledError, GeneratorExit):
                status = "CANCELLED"
                raise
            except BaseException:
                status = "UNKNOWN"
                raise
            finally:
                self._handled.labels(name, status).inc()
                self._seconds.labels(name).observe(perf_counter() - started)


def _name(code: Any) -> str:
    number = code.value[0] if isinstance(code, grpc.StatusCode) else code
    return _STATUS.get(number, "UNKNOWN")


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
            buckets=_SHORT,
            registry=registry,
        )
        self._waiting = Histogram(
            "consilium_store_waiting_seconds",
            "How long an operation waited for those before it.",
            buckets=_SHORT,
            registry=registry,
        )
        self.repeated = Counter(
            "consilium_store_repetitions",
            "Transactions that were undone in favour of another replica's and made again.",
            registry=registry,
        )

    @contextmanager
    def operating(self, call: Callable[..., Any], asked: float) -> Iterator[None]:
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
