"""What a task needs of the registry comes once, is recorded once, and is fetched anew only if it was damaged."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from silo_agent.agent.audit.recorder import AuditLog, read_entries
from silo_agent.agent.downloads import DownloadFolders, Downloads
from silo_agent.agent.metrics.instruments import AgentMetrics
from silo_agent.shared.home import SiloHome
from wire.ballot import digest
from wire.consilium.v1 import registry_pb2, task_pb2
from wire.errors import CONTENT_CORRUPT, PUBLIC_FILES_TOO_LARGE, Refusal
from wire.public_file import PublicFolder

ROWS, WEIGHTS = b"public rows", b"what they teach"
TASK = task_pb2.TaskDefinition(name="tumour", public_set=digest(ROWS), extractor=digest(WEIGHTS))
PLAIN = task_pb2.TaskDefinition(name="plain", public_set=digest(ROWS))


class Registry:
    """A coordinator that has two files and counts what is fetched."""

    def __init__(self) -> None:
        self.fetched: list[bytes] = []

    async def public_set(self, reference: str) -> registry_pb2.PublicSet:
        assert reference == digest(ROWS)
        return registry_pb2.PublicSet(digest=reference, size_bytes=len(ROWS))

    async def extractor(self, reference: str) -> registry_pb2.Extractor:
        assert reference == digest(WEIGHTS)
        return registry_pb2.Extractor(digest=reference, size_bytes=len(WEIGHTS))

    async def download(self, content: Any, folder: PublicFolder) -> int:
        [data] = [data for data in (ROWS, WEIGHTS) if digest(data) == content.digest]
        with folder.download(content.digest, content.size_bytes) as writer:
            writer.append(data)
        self.fetched.append(data)
        return len(data)


class Agent:
    """The network side of one silo; made anew, it is one that was started again."""

    def __init__(self, root: Path, registry: Registry) -> None:
        self.home, link = SiloHome(root), registry
        self.exchange, self.prometheus = DownloadFolders.of(self.home), CollectorRegistry()
        audit = AuditLog(self.home.agent, lambda: datetime(2026, 3, 1, tzinfo=UTC))
        anything: Any = link
        self.downloads = Downloads(anything, self.exchange, audit, AgentMetrics(self.prometheus))

    def prepare(
        self, definition: task_pb2.TaskDefinition, most: int = 1 << 20
    ) -> registry_pb2.Extractor | None:
        return asyncio.run(self.downloads.of_task(definition, most))[1]

    def record(self) -> list[tuple[str, str, str, int, str]]:
        return [
            (m.direction, m.kind, m.task, m.bytes, m.digest) for m in read_entries(self.home.agent)
        ]


@pytest.fixture
def registry() -> Registry:
    return Registry()


BOTH = [
    ("in", "public set", "tumour", len(ROWS), digest(ROWS)),
    ("in", "extractor", "tumour", len(WEIGHTS), digest(WEIGHTS)),
]


def test_both_files_come_and_are_recorded_once_however_often_they_are_needed(
    tmp_path: Path, registry: Registry
) -> None:
    agent = Agent(tmp_path, registry)
    for _ in range(2):
        extractor = agent.prepare(TASK)
        assert extractor is not None
        assert extractor.digest == digest(WEIGHTS)
    Agent(tmp_path, registry).prepare(TASK)
    assert registry.fetched == [ROWS, WEIGHTS]
    assert agent.record() == BOTH
    assert agent.exchange.extractors.path(digest(WEIGHTS)).read_bytes() == WEIGHTS
    came = agent.prometheus.get_sample_value(
        "consilium_agent_payload_bytes_total", {"direction": "in", "kind": "extractor"}
    )
    assert came == len(WEIGHTS)


def test_an_agent_that_died_before_the_record_makes_up_for_it(
    tmp_path: Path, registry: Registry
) -> None:
    agent = Agent(tmp_path, registry)
    for folder, content in (
        (agent.exchange.public_sets, ROWS),
        (agent.exchange.extractors, WEIGHTS),
    ):
        folder.path(digest(content)).write_bytes(content)
    agent.prepare(TASK)
    assert registry.fetched == []
    assert agent.record() == BOTH


def test_a_task_without_an_extractor_asks_for_none(tmp_path: Path, registry: Registry) -> None:
    agent = Agent(tmp_path, registry)
    assert agent.prepare(PLAIN) is None
    asyncio.run(agent.downloads.discard_damaged(PLAIN))
    assert registry.fetched == [ROWS]
    assert [kind for _, kind, *_ in agent.record()] == ["public set"]


@pytest.mark.parametrize("damaged", [ROWS, WEIGHTS], ids=["public set", "extractor"])
def test_only_what_was_damaged_is_fetched_anew(
    tmp_path: Path, registry: Registry, damaged: bytes
) -> None:
    agent = Agent(tmp_path, registry)
    agent.prepare(TASK)
    folder = agent.exchange.public_sets if damaged is ROWS else agent.exchange.extractors
    folder.path(digest(damaged)).write_bytes(damaged[:-1] + b"x")
    asyncio.run(agent.downloads.discard_damaged(TASK))
    agent.prepare(TASK)
    assert registry.fetched == [ROWS, WEIGHTS, damaged]
    assert folder.path(digest(damaged)).read_bytes() == damaged


def test_what_both_files_have_together_is_known_before_either_is_fetched(
    tmp_path: Path, registry: Registry
) -> None:
    agent = Agent(tmp_path, registry)
    with pytest.raises(Refusal) as caught:
        agent.prepare(TASK, most=len(ROWS) + len(WEIGHTS) - 1)
    assert caught.value.is_a(PUBLIC_FILES_TOO_LARGE)
    assert registry.fetched == []
    agent.prepare(TASK, most=len(ROWS) + len(WEIGHTS))
    assert registry.fetched == [ROWS, WEIGHTS]


def test_a_registry_that_answers_with_another_file_fills_nothing(
    tmp_path: Path, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def other(reference: str) -> registry_pb2.PublicSet:
        return registry_pb2.PublicSet(digest=digest(WEIGHTS), size_bytes=len(WEIGHTS))

    monkeypatch.setattr(registry, "public_set", other)
    agent = Agent(tmp_path, registry)
    with pytest.raises(Refusal) as caught:
        agent.prepare(PLAIN)
    assert caught.value.is_a(CONTENT_CORRUPT)
    assert registry.fetched == []
