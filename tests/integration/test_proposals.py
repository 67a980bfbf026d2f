"""Before a person has decided, a coordinator gets little of a hospital's disk and time, whatever it proposes."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from coordinator_process import (
    RunningCoordinator,
    background,
    consilium,
    running_coordinator,
    wait_for,
    write_data,
    write_public,
)
from patience import limit
from service import eventually

from coordinator.cli.connection import admin_link
from silo_agent.shared.home import SiloHome
from wire.consilium.v1 import admin_pb2
from wire.task.definition import TaskDefinition

PROPOSED, KEPT = 150, 100
LABELS = [f"{number:03d}-" + "x" * 190 for number in range(300)]


@pytest.fixture(scope="module")
def coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCoordinator]:
    folder = tmp_path_factory.mktemp("asks")
    with running_coordinator(folder) as running:
        write_public(folder / "points.csv")
        running.run("public-set", "add", "points", folder / "points.csv")
        yield running


def hospital(coordinator: RunningCoordinator, folder: Path, name: str, policy: str) -> SiloHome:
    """A member that has joined; nothing of it runs."""
    home = folder / name
    write_data(home, 40, seed=1)
    settings = (home / "silo.yaml").read_text().splitlines()[:-1]
    (home / "silo.yaml").write_text("\n".join([*settings, policy]) + "\n")
    consilium("agent", "join", coordinator.register(name), "--home", home)
    return SiloHome(home)


def propose(coordinator: RunningCoordinator, definitions: list[dict[str, object]]) -> None:
    """Creates tasks and starts them."""

    async def created() -> None:
        async with admin_link(coordinator.admin_home) as link:
            for values in definitions:
                definition = TaskDefinition.model_validate(values)
                request = admin_pb2.CreateTaskRequest(definition=definition.to_proto())
                await link.admin.CreateTask(request)
                await link.admin.StartTask(admin_pb2.StartTaskRequest(name=definition.name))

    asyncio.run(created())


def task(name: str, silo: str, labels: list[str]) -> dict[str, object]:
    rounds = {"max_rounds": 1, "deadline": "600s", "grace": "5s", "quorum": 1}
    return {
        "name": name,
        "public_set": "points",
        "labels": labels,
        "silos": [silo],
        "rounds": rounds,
    }


def kept(home: SiloHome) -> list[Path]:
    return list(home.tasks.glob("*/definition.json"))


def disk(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_150_proposals_cost_a_hospital_little_and_nothing_is_fetched_before_approval(
    coordinator: RunningCoordinator, tmp_path: Path
) -> None:
    home = hospital(coordinator, tmp_path, "north", "policy: {approve: manual}")
    log = tmp_path / "north.log"
    asked = ["agent", "tasks", "--json", "--home", home.root]
    began = time.monotonic()
    assert consilium(*asked).json()["tasks"] == []
    without = time.monotonic() - began
    propose(coordinator, [task("honest", "north", ["ill", "well"])])
    with background("agent", "run", "--home", home.root, log=log):
        eventually("the first is there", lambda: len(kept(home)) == 1)
        propose(coordinator, [task(f"t{n:03d}", "north", LABELS) for n in range(PROPOSED)])
        eventually("a further one is refused", lambda: "PROPOSALS_FULL" in log.read_text())
        eventually("as many as are kept", lambda: len(kept(home)) == KEPT)
        began = time.monotonic()
        assert len(consilium(*asked).json()["tasks"]) == KEPT
        assert time.monotonic() - began < without + limit(10)
        assert disk(home.tasks) <= KEPT * (64 << 10)
        assert not any(home.public_sets.iterdir())
        # One that was decided makes room for another; what a person accepted is fetched and voted in.
        consilium("agent", "approve", "honest", "--yes", "--home", home.root)
        wait_for('"task": "honest"', log)
        eventually("it is finished", lambda: _finished(coordinator, "honest"))
        assert len(list(home.public_sets.iterdir())) == 1
        eventually("the next is kept", lambda: len(kept(home)) == KEPT + 1)
    refused = [line for line in log.read_text().splitlines() if "PROPOSALS_FULL" in line]
    assert len(refused) <= PROPOSED
    assert os.path.getsize(log) < 1 << 20


def test_a_set_larger_than_the_policy_allows_is_not_fetched(
    coordinator: RunningCoordinator, tmp_path: Path
) -> None:
    policy = "policy: {approve: within_limits, max_rounds: 5, max_public_bytes: 100}"
    home = hospital(coordinator, tmp_path, "south", policy)
    log = tmp_path / "south.log"
    propose(coordinator, [task("large", "south", ["ill", "well"])])
    with background("agent", "run", "--home", home.root, log=log):
        wait_for("PUBLIC_FILES_TOO_LARGE", log)
        assert not any(home.public_sets.iterdir())


def test_a_person_may_have_a_set_fetched_before_deciding(
    coordinator: RunningCoordinator, tmp_path: Path
) -> None:
    home = hospital(coordinator, tmp_path, "east", "policy: {approve: manual}")
    shown = json.loads(coordinator.run("public-set", "list", "--json").out)
    digest = shown["public_sets"][0]["digest"]
    consilium("agent", "fetch", digest, "--yes", "--home", home.root)
    assert [path.name for path in home.public_sets.iterdir()] == [digest]
    assert digest in consilium("agent", "traffic", "--json", "--home", home.root).out
    # Also while an agent runs, which does it in its stead: there is one writer of the record.
    (home.public_sets / digest).unlink()
    log = tmp_path / "east.log"
    with background("agent", "run", "--home", home.root, log=log):
        wait_for("connected", log)
        consilium("agent", "fetch", digest, "--yes", "--home", home.root)
        assert [path.name for path in home.public_sets.iterdir()] == [digest]
    consilium("agent", "audit", "verify", "--home", home.root)
    told = consilium("agent", "fetch", "ab" * 32, "--yes", "--home", home.root, status=1)
    assert "PUBLIC_SET_UNKNOWN" in told.err


def _finished(coordinator: RunningCoordinator, name: str) -> bool:
    return "FINISHED" in coordinator.run("task", "show", name, "--json").out
