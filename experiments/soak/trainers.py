"""The private sides of all silos, simulated by one process that can be killed: a Unix socket for each.

`python -m experiments.soak.trainers FOLDER SILOS`; FOLDER holds the silos' homes. Like real trainers they keep a
ballot on disk before they hand it out, and hand out that one whenever they are asked again.
"""

from __future__ import annotations

import asyncio
import random
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import grpc

from experiments.soak.ballots import ballot, silo_name
from silo_agent.shared.home import SiloHome
from wire.ballot import BallotShape
from wire.consilium.v1 import trainer_pb2, trainer_pb2_grpc
from wire.errors import NOT_PREPARED, Refusal
from wire.runtime.files import write_atomically
from wire.task.definition import TaskDefinition

# Long enough that faults meet trainings under way.
_TRAINING_SECONDS = 0.05


class SoakTrainer(trainer_pb2_grpc.TrainerServiceServicer):
    """The private side of one silo: approves everything, trains for some milliseconds."""

    def __init__(self, name: str, kept: Path) -> None:
        self._name = name
        self._kept = kept
        self._shapes: dict[str, BallotShape] = {}

    async def Describe(
        self, request: trainer_pb2.DescribeRequest, context: Any
    ) -> trainer_pb2.DescribeResponse:
        """Simulated, hence isolated from nothing."""
        return trainer_pb2.DescribeResponse(
            version="0",
            isolation=trainer_pb2.ISOLATION_NONE,
            isolation_note="simulated by the soak",
        )

    async def Propose(
        self, request: trainer_pb2.ProposeRequest, context: Any
    ) -> trainer_pb2.ProposeResponse:
        """Every task is approved."""
        definition = TaskDefinition.from_proto(request.definition)
        return trainer_pb2.ProposeResponse(task_digest=definition.digest)

    async def Prepare(
        self, request: trainer_pb2.PrepareRequest, context: Any
    ) -> trainer_pb2.PrepareResponse:
        """Every task fits; forgotten when the process dies, as by a real trainer."""
        definition = TaskDefinition.from_proto(request.definition)
        self._shapes[definition.digest] = definition.shape
        return trainer_pb2.PrepareResponse(task_digest=definition.digest)

    async def Vote(
        self, request: trainer_pb2.VoteRequest, context: Any
    ) -> trainer_pb2.VoteResponse:
        """The kept ballot of the round, or a new one."""
        shape = self._shapes.get(request.task_digest)
        if shape is None:
            refusal = Refusal(NOT_PREPARED, task=request.task_digest[:12])
            await context.abort(refusal.status, refusal.sentence, refusal.metadata())
            raise AssertionError("abort returns never")
        path = self._kept / f"{request.round}.ballot"
        if not path.exists():
            await asyncio.sleep(random.uniform(0, _TRAINING_SECONDS))  # noqa: S311  no secret
            data = ballot(shape, self._name, request.round, request.consensus.data)
            write_atomically(path, data)
        return trainer_pb2.VoteResponse(encoding=shape.encoding.to_proto(), data=path.read_bytes())

    async def Finish(
        self, request: trainer_pb2.FinishRequest, context: Any
    ) -> trainer_pb2.FinishResponse:
        """No model to keep."""
        return trainer_pb2.FinishResponse()


async def serve(folder: Path, silos: int) -> None:
    """Serves every silo's socket until killed."""
    async with AsyncExitStack() as stack:
        for name in map(silo_name, range(silos)):
            home = SiloHome(folder / name)
            home.trainer.mkdir(exist_ok=True)
            home.exchange.mkdir(exist_ok=True)
            home.socket.unlink(missing_ok=True)
            server = grpc.aio.server()
            trainer_pb2_grpc.add_TrainerServiceServicer_to_server(
                SoakTrainer(name, home.trainer), server
            )
            server.add_insecure_port(f"unix:{home.socket}")
            await server.start()
            stack.push_async_callback(server.stop, None)
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve(Path(sys.argv[1]), int(sys.argv[2])))
