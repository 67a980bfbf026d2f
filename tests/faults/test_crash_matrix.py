"""Every transition, killed with -9 just before and just after it: nothing lost, nothing counted twice.

Two federations go through all crash points. In one the coordinator dies, nineteen times; in the other the
hospitals die: the agent of one, the trainers of two. Whatever died left on the disk what `LOOKS` says, was
started again, and the end is that of a federation that nobody disturbed.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from coordinator_process import consilium
from harness import (
    SILOS,
    Federation,
    assert_as_if_nothing_happened,
    assert_records_are_whole,
    federation,
)
from looks import LOOKS

from coordinator.cli.connection import renewed_admin
from wire.runtime.crash_points import (
    AGENT_POINTS,
    BUDGET_POINTS,
    COORDINATOR_POINTS,
    TRAINER_POINTS,
)

# Two tests start a whole federation each, and every process in it many times.
pytestmark = pytest.mark.timeout(900)

ROOT = Path(__file__).parents[2]
JOINING = tuple(point for point in AGENT_POINTS if point.startswith("join-"))
RUNNING = (
    *("renewal-asking", "renewal-answered", "renewal-stored", "public-set-fetched"),
    *("ballot-handed-in", "ballot-recorded", "ballot-answered", "receipt-recorded"),
    "consensus-fetched",
)
SUPERVISED = ("vote-asked", "ballot-kept", "model-kept")


# -- the two federations ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mortal_coordinator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """The coordinator dies at every one of its points, in the order of a federation's life."""
    order = sorted(COORDINATOR_POINTS, key=lambda point: not point.startswith("public-set"))
    points = {"coordinator": order}
    with federation(tmp_path_factory.mktemp("co"), points, LOOKS) as made:
        made.publish()
        for name in SILOS:
            made.join(name)
        made.insist(lambda: asyncio.run(renewed_admin(made.home)))
        for name in SILOS:
            made.run_silo(name)
        made.start_task()
        made.until_finished()
        yield made


@pytest.fixture(scope="module")
def mortal_hospitals(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """North's agent, south's trainer under its supervisor and west's trainer die at every one of their points."""
    points = {
        "north-join": JOINING,
        "north-agent": RUNNING,
        "south-agent": SUPERVISED,
        "west-trainer": TRAINER_POINTS,
    }
    folder = tmp_path_factory.mktemp("hosp")
    with federation(folder, points, LOOKS, supervised=["south"]) as made:
        made.publish()
        for name in SILOS:
            made.join(name)
            made.run_silo(name)
        # Whoever hears that another authority signs now renews at once.
        consilium("coordinator", "rotate-authority", "--home", made.home)
        query = "SELECT count(DISTINCT name) FROM certificates WHERE role = 'silo' AND issued > 1"
        made.until("three deaths in renewal", lambda: len(made.died_at()["north-agent"]) == 3)
        made.until("everyone's renewal", lambda: made.rows(query) == [(len(SILOS),)])
        made.start_task()
        made.until_finished()
        yield made


def assert_died(made: Federation, name: str, point: str) -> None:
    assert point in made.died_at()[name]
    if point in made.failures:
        raise made.failures[point]


class TestCoordinator:
    @pytest.mark.parametrize("point", COORDINATOR_POINTS)
    def test_killed_at(self, mortal_coordinator: Federation, point: str) -> None:
        assert_died(mortal_coordinator, "coordinator", point)

    def test_the_end_is_the_same(
        self, mortal_coordinator: Federation, undisturbed: Federation
    ) -> None:
        assert_as_if_nothing_happened(mortal_coordinator, undisturbed)
        assert_records_are_whole(mortal_coordinator)
        assert mortal_coordinator.acts("certificate_renewed") == 1


class TestHospitals:
    @pytest.mark.parametrize("point", JOINING)
    def test_joining_killed_at(self, mortal_hospitals: Federation, point: str) -> None:
        assert_died(mortal_hospitals, "north-join", point)

    @pytest.mark.parametrize("point", RUNNING)
    def test_agent_killed_at(self, mortal_hospitals: Federation, point: str) -> None:
        assert_died(mortal_hospitals, "north-agent", point)

    @pytest.mark.parametrize("point", TRAINER_POINTS)
    def test_trainer_killed_at(self, mortal_hospitals: Federation, point: str) -> None:
        assert_died(mortal_hospitals, "west-trainer", point)

    @pytest.mark.parametrize("point", SUPERVISED)
    def test_supervised_trainer_killed_at(self, mortal_hospitals: Federation, point: str) -> None:
        assert_died(mortal_hospitals, "south-agent", point)

    def test_the_end_is_the_same(
        self, mortal_hospitals: Federation, undisturbed: Federation
    ) -> None:
        made = mortal_hospitals
        assert_as_if_nothing_happened(made, undisturbed)
        assert_records_are_whole(made)
        # Once each: the answer that was lost gave the certificate it would have given.
        assert made.acts("certificate_renewed") == len(SILOS)
        deaths = made.processes["south-agent"].events("trainer_died")
        assert [death["status"] for death in deaths] == [-9] * len(SUPERVISED)


# -- the list is complete --------------------------------------------------------------------------------


def test_every_point_is_in_the_code_once_in_the_matrix_and_in_the_document() -> None:
    sources = [
        path
        for room in ("coordinator", "silo_agent", "wire")
        for path in ROOT.glob(f"{room}/**/*.py")
    ]
    placed = [
        point
        for source in sources
        for point in re.findall(r'crash_point\("([\w-]+)"\)', source.read_text())
    ]
    listed = [*COORDINATOR_POINTS, *AGENT_POINTS, *TRAINER_POINTS]
    # A budget that is spent meanwhile has a test of its own: `test_ledger_crashes.py`.
    assert sorted(placed) == sorted([*listed, *BUDGET_POINTS])
    assert LOOKS.keys() == set(listed)
    assert set(JOINING) | set(RUNNING) == set(AGENT_POINTS)
    document = (ROOT / "docs" / "crashes.md").read_text()
    assert [point for point in (*listed, *BUDGET_POINTS) if f"`{point}`" not in document] == []
