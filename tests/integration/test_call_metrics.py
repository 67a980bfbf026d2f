"""Calls through the real gate are counted by method and by the status the caller saw."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

import grpc
import pytest
from loopback import Consortium, Heart
from prometheus_client import CollectorRegistry
from service import eventually

from coordinator.api.interceptor import SERVICE_TABLE, AdmissionInterceptor
from coordinator.metrics.calls import CallMetrics
from wire.consilium.v1 import rounds_pb2, rounds_pb2_grpc
from wire.identity.identity import Role
from wire.net.channels import secure_channel


class Pulse(Heart):
    """Beats, watches for ever, and forgets how to leave."""

    async def Watch(
        self, request: rounds_pb2.WatchRequest, context: Any
    ) -> AsyncIterator[rounds_pb2.WatchResponse]:
        yield rounds_pb2.WatchResponse(ballots_held=1)
        await asyncio.Event().wait()

    async def Leave(
        self, request: rounds_pb2.LeaveRequest, context: Any
    ) -> rounds_pb2.LeaveResponse:
        raise ValueError("label 7 of patient 12")


def counted(
    consortium: Consortium,
    role: Role,
    call: Callable[[rounds_pb2_grpc.RoundsServiceAsyncStub, CollectorRegistry], Awaitable[None]],
    outages: int = 0,
) -> CollectorRegistry:
    """What was counted when someone in `role` had made a call."""
    registry = CollectorRegistry()
    gate = AdmissionInterceptor(
        SERVICE_TABLE,
        consortium.admit,
        lambda *_: None,
        answering=CallMetrics(registry).measure,
    )
    identity = consortium.member(role, "north")

    async def scenario() -> None:
        async with (
            consortium.serving(Pulse(outages).register, gate=gate) as address,
            secure_channel(address, identity) as channel,
        ):
            await call(rounds_pb2_grpc.RoundsServiceStub(channel), registry)

    asyncio.run(scenario())
    return registry


def handled(registry: CollectorRegistry, method: str, status: str) -> float | None:
    labels = {"method": f"RoundsService/{method}", "status": status}
    return registry.get_sample_value("consilium_grpc_handled_total", labels)


async def beat(stub: rounds_pb2_grpc.RoundsServiceAsyncStub, _: CollectorRegistry) -> None:
    for _ in range(2):
        with suppress(grpc.aio.AioRpcError):
            await stub.Heartbeat(rounds_pb2.HeartbeatRequest())


def test_answers_and_aborts_are_told_apart(consortium: Consortium) -> None:
    registry = counted(consortium, Role.SILO, beat, outages=1)
    # The channel tries an unavailable server again by itself.
    assert handled(registry, "Heartbeat", "UNAVAILABLE") == 1
    assert handled(registry, "Heartbeat", "OK") == 2
    name = {"method": "RoundsService/Heartbeat"}
    assert registry.get_sample_value("consilium_grpc_handling_seconds_count", name) == 3
    assert registry.get_sample_value("consilium_grpc_calls_in_progress", name) == 0


def test_a_refusal_has_the_status_that_the_caller_sees(consortium: Consortium) -> None:
    registry = counted(consortium, Role.ADMIN, beat)
    assert handled(registry, "Heartbeat", "PERMISSION_DENIED") == 2
    assert handled(registry, "Heartbeat", "OK") is None


def test_a_mistake_of_ours_is_counted_as_internal(consortium: Consortium) -> None:
    async def leave(stub: rounds_pb2_grpc.RoundsServiceAsyncStub, _: CollectorRegistry) -> None:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Leave(rounds_pb2.LeaveRequest())
        assert caught.value.code() is grpc.StatusCode.INTERNAL

    assert handled(counted(consortium, Role.SILO, leave), "Leave", "INTERNAL") == 1


def test_a_stream_is_in_progress_until_it_is_cut(consortium: Consortium) -> None:
    watching = {"method": "RoundsService/Watch"}

    async def watch(
        stub: rounds_pb2_grpc.RoundsServiceAsyncStub, registry: CollectorRegistry
    ) -> None:
        def in_progress() -> float | None:
            return registry.get_sample_value("consilium_grpc_calls_in_progress", watching)

        call = stub.Watch(rounds_pb2.WatchRequest(instance="i"))
        assert (await call.read()).ballots_held == 1
        assert in_progress() == 1
        call.cancel()
        await asyncio.to_thread(eventually, "the end of the stream", lambda: in_progress() == 0)

    assert handled(counted(consortium, Role.SILO, watch), "Watch", "CANCELLED") == 1
