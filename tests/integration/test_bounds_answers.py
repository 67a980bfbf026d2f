"""What a coordinator answers and what an agent asks its trainer is held to the same bounds as what they are sent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from loopback import Consortium
from patience import PATIENCE

from silo_agent.agent.coordinator_client import CoordinatorClient
from silo_agent.trainer.bounded_requests import BoundedRequests
from wire.consilium.v1 import (
    ballot_pb2,
    identity_pb2,
    identity_pb2_grpc,
    registry_pb2,
    registry_pb2_grpc,
    rounds_pb2,
    rounds_pb2_grpc,
    task_pb2,
    trainer_pb2,
    trainer_pb2_grpc,
)
from wire.errors import FIELD_TOO_LONG, Refusal, from_rpc
from wire.identity.identity import Role
from wire.net.channels import unix_channel

LONG = "x" * 100_000


class Rounds(rounds_pb2_grpc.RoundsServiceServicer):
    async def Watch(self, request: Any, context: Any) -> AsyncIterator[rounds_pb2.WatchResponse]:
        yield rounds_pb2.WatchResponse(task=task_pb2.TaskState(reason=LONG))

    async def Heartbeat(self, request: Any, context: Any) -> rounds_pb2.HeartbeatResponse:
        return rounds_pb2.HeartbeatResponse(authority=LONG)

    async def GetReceipt(self, request: Any, context: Any) -> rounds_pb2.GetReceiptResponse:
        return rounds_pb2.GetReceiptResponse(receipt=ballot_pb2.Receipt(signature=bytes(100_000)))

    async def FetchConsensus(
        self, request: Any, context: Any
    ) -> AsyncIterator[rounds_pb2.FetchConsensusResponse]:
        yield rounds_pb2.FetchConsensusResponse(header=ballot_pb2.ConsensusHeader(digest=LONG))


class Registry(registry_pb2_grpc.RegistryServiceServicer):
    async def GetPublicSet(self, request: Any, context: Any) -> registry_pb2.GetPublicSetResponse:
        return registry_pb2.GetPublicSetResponse(public_set=registry_pb2.PublicSet(name=LONG))


class Identities(identity_pb2_grpc.IdentityServiceServicer):
    async def WhoAmI(self, request: Any, context: Any) -> identity_pb2.WhoAmIResponse:
        return identity_pb2.WhoAmIResponse(name=LONG)

    async def Renew(self, request: Any, context: Any) -> identity_pb2.RenewResponse:
        return identity_pb2.RenewResponse(certificate_pem=LONG)


def register(server: grpc.aio.Server) -> None:
    rounds_pb2_grpc.add_RoundsServiceServicer_to_server(Rounds(), server)
    registry_pb2_grpc.add_RegistryServiceServicer_to_server(Registry(), server)
    identity_pb2_grpc.add_IdentityServiceServicer_to_server(Identities(), server)


async def first_state(link: CoordinatorClient) -> object:
    return await anext(link.watch("i", 0, lambda: None))


ASKED: dict[str, Callable[[CoordinatorClient], Any]] = {
    "watch": first_state,
    "heartbeat": lambda link: link.heartbeat("i", rounds_pb2.ACTIVITY_IDLE),
    "receipt": lambda link: link.receipt("t", 1),
    "consensus": lambda link: link.consensus("t", 1),
    "public set": lambda link: link.public_set("wards"),
    "who am I": lambda link: link.who_am_i(),
    "renew": lambda link: link.renew(identity_pb2.RenewRequest()),
}


@pytest.mark.parametrize("asked", ASKED)
def test_an_agent_takes_no_answer_that_holds_too_much(consortium: Consortium, asked: str) -> None:
    silo = consortium.member(Role.SILO, "hospital-a")

    async def scenario() -> None:
        async with consortium.serving(register) as address:
            link = CoordinatorClient(replace(silo, coordinator_address=address))
            with pytest.raises(Refusal) as caught:
                await ASKED[asked](link)
            assert caught.value.is_a(FIELD_TOO_LONG), caught.value.sentence
            await link.close()

    asyncio.run(asyncio.wait_for(scenario(), PATIENCE))


class Trainer(trainer_pb2_grpc.TrainerServiceServicer):
    async def Describe(self, request: Any, context: Any) -> trainer_pb2.DescribeResponse:
        return trainer_pb2.DescribeResponse()

    async def Propose(self, request: Any, context: Any) -> trainer_pb2.ProposeResponse:
        raise AssertionError("served")


def test_a_trainer_takes_no_request_that_holds_too_much(tmp_path: Path) -> None:
    task = task_pb2.TaskDefinition(name="t", labels=["a", "b" * 100_000])

    async def scenario() -> None:
        server = grpc.aio.server(interceptors=[BoundedRequests()])
        trainer_pb2_grpc.add_TrainerServiceServicer_to_server(Trainer(), server)
        server.add_insecure_port(f"unix:{tmp_path / 's'}")
        await server.start()
        async with unix_channel(tmp_path / "s") as channel:
            stub = trainer_pb2_grpc.TrainerServiceStub(channel)
            await stub.Describe(trainer_pb2.DescribeRequest(), timeout=PATIENCE)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await stub.Propose(trainer_pb2.ProposeRequest(definition=task), timeout=PATIENCE)
        await server.stop(None)
        refusal = from_rpc(caught.value)
        assert refusal is not None
        assert refusal.is_a(FIELD_TOO_LONG)

    asyncio.run(scenario())
