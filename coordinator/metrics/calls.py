"""Calls of members to this server: how many, with what status, how long they take."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from typing import Any, Final, Protocol

import grpc
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

SHORT_SECONDS: Final = (0.001, 0.005, 0.025, 0.1, 0.5, 2.5, 10, 60)
"""Histogram buckets for what usually takes milliseconds."""
_STATUS = {status.value[0]: status.name for status in grpc.StatusCode}


class CallContext(Protocol):
    """What is read of gRPC's context of a call."""

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
            buckets=SHORT_SECONDS,
            registry=registry,
        )
        self._open = Gauge(
            "consilium_grpc_calls_in_progress",
            "Calls being answered; open watch streams among them.",
            ["method"],
            registry=registry,
        )

    @contextmanager
    def measure(self, method: str, context: CallContext) -> Iterator[None]:
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
