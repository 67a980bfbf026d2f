"""An agent in foreign hands asks the trainer for more than ballots: real trainer, real socket, real files."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from compromised import LABELS, NO_NOISE, ROWS, Hospital, refuses

from coordinator.public_sets.convert import convert
from silo_agent.trainer.task_folder import TaskFolder
from wire.consilium.v1 import registry_pb2, trainer_pb2, trainer_pb2_grpc
from wire.errors import (
    CONTENT_CORRUPT,
    DATA_MISMATCH,
    PRIVATE_SIDE_UNREADY,
    Fault,
)
from wire.net.channels import unix_channel
from wire.runtime.files import digest_of

AUTOMATIC: dict[str, Any] = NO_NOISE | {"policy": {"approve": "within_limits", "max_rounds": 9}}


@pytest.fixture
def hospital() -> Iterator[Hospital]:
    # A Unix socket's path must be short; pytest's folders are not.
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        made = Hospital(Path(folder))
        made.settings(AUTOMATIC)
        try:
            yield made
        finally:
            made.end()


def test_a_schema_of_the_agents_own_making_is_not_looked_at(hospital: Hospital) -> None:
    """Field 2 of the request was the public set's entry; what it says of columns was compared with private cells."""
    hospital.start()
    task = hospital.task()
    lie = registry_pb2.PublicSet()
    lie.CopyFrom(hospital.public)
    column = lie.schema.columns[0]
    column.type, column.categories[:] = registry_pb2.COLUMN_TYPE_CATEGORY, ["1"]
    written = lie.SerializeToString()
    request = trainer_pb2.PrepareRequest(definition=task.to_proto(), silo="north")
    request.MergeFromString(b"\x12" + _varint(len(written)) + written)

    async def attack() -> None:
        async with hospital.agent(), unix_channel(hospital.home.socket) as channel:
            stub = trainer_pb2_grpc.TrainerServiceStub(channel)
            answer = await stub.Prepare(request)
            assert answer == trainer_pb2.PrepareResponse(task_digest=task.digest)

    asyncio.run(attack())
    assert "categories" not in hospital.logged()


def _varint(number: int) -> bytes:
    more, low = divmod(number, 128)
    return bytes([low]) if not more else bytes([low | 128]) + _varint(more)


@pytest.mark.parametrize(
    ("fault", "edit", "logged"),
    [
        (DATA_MISMATCH, ("age,marker", "years,marker"), "age"),
        (PRIVATE_SIDE_UNREADY, ("state", "diagnosis"), "no column state"),
    ],
    ids=["misfit", "unusable data"],
)
def test_why_something_fails_is_told_at_home_and_the_agent_gets_a_code(
    hospital: Hospital,
    fault: Fault,
    edit: tuple[str, str],
    logged: str,
) -> None:
    data = hospital.home.root / "data.csv"
    data.write_text(data.read_text().replace(*edit, 1))
    hospital.settings(AUTOMATIC)
    hospital.start()
    task = hospital.task()

    async def attack() -> list[str]:
        async with hospital.agent(), unix_channel(hospital.home.socket) as channel:
            stub = trainer_pb2_grpc.TrainerServiceStub(channel)
            prepare = trainer_pb2.PrepareRequest(definition=task.to_proto(), silo="north")
            try:
                await stub.Prepare(prepare)
                await stub.Vote(trainer_pb2.VoteRequest(task_digest=task.digest, round=1))
            except grpc.aio.AioRpcError as error:
                metadata = error.trailing_metadata() or ()
                return [error.details() or "", *(str(value) for _, value in metadata)]
            raise AssertionError("it voted")

    told = asyncio.run(attack())
    # Word for word what the catalogue says of any hospital.
    details = {"task": task.name, "round": 1}
    assert told == [
        fault.sentence.format(**details),
        fault.code,
        fault.hint.format(**details),
    ]
    assert logged in hospital.logged()


def as_arrays(hospital: Hospital) -> registry_pb2.PublicSet:
    """The same patients as an array, which is mapped into memory; the public set of other rows."""
    root = hospital.home.root
    states = np.take(LABELS, hospital.diagnoses)
    np.savez(root / "data.npz", rows=hospital.rows.astype(np.float32), state=states)
    np.save(root / "wards.npy", np.random.default_rng(3).normal(size=(ROWS, 2)).astype(np.float32))
    made = convert(root / "wards.npy", root / "converted")
    digest = digest_of(made.path)
    made.path.rename(hospital.home.public_sets / digest)
    return registry_pb2.PublicSet(digest=digest, schema=made.schema.to_proto())


def test_questions_that_are_exchanged_after_they_were_approved_are_not_answered(
    hospital: Hospital,
) -> None:
    public = as_arrays(hospital)
    data = {"path": "data.npz", "label": "state", "features": "rows"}
    hospital.settings(AUTOMATIC | {"data": data})
    hospital.start()
    task = hospital.task(public_set=public.digest)
    shared = hospital.home.public_sets / public.digest
    asked = np.load(shared)

    async def attack() -> bytes:
        async with hospital.agent() as link:
            await link.prepare(task.to_proto(), "north")
            # In place: whoever has the file mapped sees the patients' very rows.
            with shared.open("r+b") as file:
                file.seek(-asked.nbytes, os.SEEK_END)
                file.write(hospital.rows.astype(np.float32).tobytes())
            answer = (await link.vote(task.digest, 1, None, 0)).data
            # The file is gone altogether.
            shared.unlink()
            await link.vote(task.digest, 2, None, 0)
            return answer

    # Of 80 coin flips 70 or more are guessed once in 10¹¹ tries.
    assert hospital.recovered(task, asyncio.run(attack())) < 70


def test_a_trainer_neither_waits_for_pipes_nor_follows_links(hospital: Hospital) -> None:
    hospital.start()
    task = hospital.task()
    shared = hospital.home.public_sets / hospital.public.digest
    content = shared.read_bytes()

    async def attack() -> None:
        async with hospital.agent() as link:
            shared.unlink()
            os.mkfifo(shared)
            await refuses(link.prepare(task.to_proto(), "north"), CONTENT_CORRUPT)
            shared.unlink()
            shared.symlink_to(hospital.home.settings_file)
            await refuses(link.prepare(task.to_proto(), "north"), CONTENT_CORRUPT)
            shared.unlink()
            shared.write_bytes(content)
            await link.prepare(task.to_proto(), "north")
            copies = list(hospital.home.public_copies.rglob(hospital.public.digest))
            assert len(copies) == 1
            await link.vote(task.digest, 1, None, 0)
            final = trainer_pb2.ConsensusLabels(
                round=1, data=bytes(task.shape.as_index().size_bytes)
            )
            await link.finish(task.digest, final)
            assert not any(copy.exists() for copy in copies)

    asyncio.run(attack())
    assert TaskFolder(hospital.home.tasks, task.digest).model_path() is not None
