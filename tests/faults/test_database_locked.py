"""A database that nobody can use for a while: callers are told so, nothing is lost, and it passes by itself."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from harness import (
    SILOS,
    TASK,
    Federation,
    assert_as_if_nothing_happened,
    assert_records_are_whole,
    federation,
)

from wire.consilium.v1 import admin_pb2
from wire.errors import STORE_UNAVAILABLE, Refusal


@contextmanager
def locked(database: Path) -> Iterator[None]:
    """Someone else has the database for as long as the block takes."""
    with closing(sqlite3.connect(database, timeout=60, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield


def test_a_locked_database_holds_a_federation_up_and_does_nothing_worse(
    tmp_path: Path, undisturbed: Federation
) -> None:
    database = tmp_path / "coordinator" / "coordinator.db"
    # How long the coordinator waits for a lock before it refuses.
    with federation(tmp_path, database=f"sqlite:///{database}?timeout=0.2") as made:
        made.publish()
        for name in SILOS:
            made.join(name)
            made.run_silo(name)
        made.start_task()
        with locked(database):
            made.until("trouble", lambda: made.coordinator.events("store_unavailable"))
            assert "locked" in made.coordinator.events("store_unavailable")[0]["why"]
            pause = admin_pb2.PauseTaskRequest(name=TASK)
            with pytest.raises(Refusal) as refused:
                made.admin(lambda link: link.admin.PauseTask(pause))
            assert refused.value.is_a(STORE_UNAVAILABLE)
            made.until("everyone has noticed", lambda: all(noticed(made, name) for name in SILOS))
            assert not any(process.ended() for process in made.processes.values())
        made.until_finished()
        assert_as_if_nothing_happened(made, undisturbed)
        assert_records_are_whole(made)


def noticed(made: Federation, name: str) -> bool:
    agent = made.processes[f"{name}-agent"]
    told = [*agent.events("disconnected"), *agent.events("task_delayed")]
    return any(STORE_UNAVAILABLE.sentence in event["sentence"] for event in told)
