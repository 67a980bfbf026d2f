"""However many tasks ask, the trainer is asked at one pace; how many are kept and followed is bounded too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from silo_agent.agent import agent as agents
from silo_agent.agent import coordinator_client
from silo_agent.agent.agent import Agent
from silo_agent.agent.coordinator_client import CoordinatorClient
from silo_agent.agent.pace import Pace
from silo_agent.trainer.task_folder import TaskFolder, undecided
from wire.consilium.v1 import rounds_pb2, task_pb2
from wire.errors import Refusal
from wire.task.definition import TaskDefinition


def test_callers_are_let_through_one_after_the_other_in_order() -> None:
    async def scenario() -> tuple[list[int], float]:
        pace, order, loop = Pace(0.01), list[int](), asyncio.get_running_loop()

        async def ask(number: int) -> None:
            await pace.turn()
            order.append(number)

        began = loop.time()
        await asyncio.gather(*map(ask, range(10)))
        return order, loop.time() - began

    order, lasted = asyncio.run(scenario())
    assert order == list(range(10))
    assert lasted >= 0.09


def test_only_what_nobody_has_decided_on_is_counted(tmp_path: Path) -> None:
    tasks = [
        TaskDefinition.model_validate({"name": name, "public_set": "u", "labels": ["a", "b"]})
        for name in ("one", "two", "three")
    ]
    for task in tasks:
        TaskFolder(tmp_path, task.digest).keep_definition(task)
    assert undecided(tmp_path, ()) == 3
    assert undecided(tmp_path, {tasks[0].digest, "another"}) == 2


def test_the_oldest_task_that_has_ended_makes_room_and_else_none_does(monkeypatch: Any) -> None:
    monkeypatch.setattr(agents, "MOST_TASKS", 2)
    nothing: Any = None
    agent = Agent(*([nothing] * 8))
    cancelled: list[str] = []
    for name, ended in (("running", False), ("ended", True)):
        worker: Any = SimpleNamespace(ended=ended)
        work: Any = SimpleNamespace(cancel=lambda name=name: cancelled.append(name))
        agent._workers[name], agent._worker_tasks[name] = worker, work
    assert agent._make_room()
    assert cancelled == ["ended"]
    assert list(agent._workers) == ["running"]
    agent._workers["new"] = agent._workers["running"]
    assert not agent._make_room()


def test_a_definition_beyond_every_valid_one_is_not_even_held() -> None:
    nothing: Any = None
    agent = Agent(*([nothing] * 8))
    with capture_logs() as lines:
        for _ in range(3):
            assert not agent._is_small(task_pb2.TaskDefinition(name="t", labels=["x" * 200] * 1000))
    assert [line["event"] for line in lines] == ["task_too_large"]
    assert agent._is_small(task_pb2.TaskDefinition(name="t", labels=["x" * 200] * 300))


def test_a_consensus_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_client, "MOST_CONSENSUS_BYTES", 1 << 20)
    sent = 0

    async def endless(*_: Any, **__: Any) -> AsyncIterator[rounds_pb2.FetchConsensusResponse]:
        nonlocal sent
        while True:
            sent += 1
            yield rounds_pb2.FetchConsensusResponse(data=bytes(1 << 18))

    channel: Any = SimpleNamespace(rounds=SimpleNamespace(FetchConsensus=endless))
    link = CoordinatorClient.__new__(CoordinatorClient)

    async def call(make: Any) -> Any:
        return await make(channel)

    monkeypatch.setattr(link, "_call", call)
    with pytest.raises(Refusal, match="no end"):
        asyncio.run(link.consensus("t", 1))
    assert sent == 5
