"""What is counted of tasks and of refusals: from 0, and no longer than the page shows a task."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client import CollectorRegistry

from coordinator.metrics.instruments import Metrics
from coordinator.metrics.store import StoreCollector, StoreSnapshot
from coordinator.round_engine import ClosedBy
from coordinator.store.records import ClosedRound, TaskRecord
from wire.consilium.v1 import rounds_pb2
from wire.errors import CATALOGUE
from wire.task.definition import TaskDefinition, TaskStatus

pytestmark = pytest.mark.slow

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
CAST_BALLOT = "/consilium.v1.RoundsService/CastBallot"


class Coordinator:
    """A page whose store holds the tasks one puts into it."""

    def __init__(self) -> None:
        self.tasks: dict[str, TaskRecord] = {}
        self.now = NOW
        self.registry = CollectorRegistry()
        self.metrics = Metrics(self.registry)
        self.registry.register(
            StoreCollector(
                lambda now: StoreSnapshot(tasks=tuple(self.tasks.values())),
                lambda: self.now,
                self.metrics.tasks.show,
            )
        )

    def start(self, name: str) -> None:
        definition = {"name": name, "public_set": "wards", "labels": ["ill", "well"]}
        revision = len(self.tasks) + 1
        self.tasks[name] = TaskRecord(
            TaskDefinition.model_validate(definition),
            "d",
            TaskStatus.RUNNING,
            "",
            revision,
            None,
            None,
        )

    def close_a_round(self, name: str) -> None:
        for _ in range(3):
            self.metrics.tasks.ballot_stored(name, 8)
        self.metrics.tasks.round_closed(name, ClosedBy.EVERYONE, MINUTE)

    def finish(self, name: str) -> None:
        last = ClosedRound(1, self.now, self.now, ClosedBy.EVERYONE, "", 5, 10, 4, 3, ())
        held = self.tasks[name]
        self.tasks[name] = TaskRecord(
            held.definition, held.digest, TaskStatus.FINISHED, "", held.revision, None, last
        )

    def series(self) -> Iterator[tuple[str, str]]:
        """Name and task of everything on the page."""
        for family in self.registry.collect():
            for sample in family.samples:
                yield sample.name, sample.labels.get("task", "")

    def scraped(self) -> int:
        return len(list(self.series()))

    def sample(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"consilium_{name}", labels)


@pytest.fixture
def coordinator() -> Coordinator:
    return Coordinator()


class TestTasks:
    def test_a_task_is_counted_from_nothing_as_soon_as_it_is_seen(
        self, coordinator: Coordinator
    ) -> None:
        coordinator.start("flu")
        coordinator.scraped()
        names = ("ballots_accepted_total", "ballot_bytes_total", "round_duration_seconds_count")
        assert [coordinator.sample(name, task="flu") for name in names] == [0, 0, 0]
        for by in ClosedBy:
            assert coordinator.sample("rounds_closed_total", task="flu", by=str(by)) == 0
        coordinator.close_a_round("flu")
        assert [coordinator.sample(name, task="flu") for name in names] == [3, 24, 1]
        everyone = str(ClosedBy.EVERYONE)
        assert coordinator.sample("rounds_closed_total", task="flu", by=everyone) == 1
        assert coordinator.sample("round_duration_seconds_sum", task="flu") == 60

    def test_two_hundred_tasks_one_after_the_other_leave_the_page_as_it_was(
        self, coordinator: Coordinator
    ) -> None:
        empty = coordinator.scraped()
        most = 0
        for number in range(200):
            name = f"t{number}"
            coordinator.start(name)
            coordinator.close_a_round(name)
            coordinator.finish(name)
            coordinator.now += timedelta(hours=12)
            most = max(most, coordinator.scraped())
        per_task = sum(task == "t199" for _, task in coordinator.series())
        assert per_task > 15
        # Two are from within a day, and one is kept once more.
        assert most <= empty + 4 * per_task
        coordinator.now += timedelta(days=2)
        coordinator.scraped()
        assert coordinator.scraped() == empty

    def test_two_hundred_tasks_at_once_are_counted_for_the_hundred_that_changed_last(
        self, coordinator: Coordinator
    ) -> None:
        for number in range(200):
            coordinator.start(f"t{number}")
            coordinator.close_a_round(f"t{number}")
        coordinator.scraped()
        coordinator.scraped()
        counted = {task for name, task in coordinator.series() if "ballots_accepted" in name}
        assert counted == {f"t{number}" for number in range(100, 200)}

    def test_what_is_counted_while_the_store_is_read_is_not_lost(
        self, coordinator: Coordinator
    ) -> None:
        coordinator.metrics.tasks.ballot_stored("flu", 8)
        coordinator.metrics.tasks.show([])
        assert coordinator.sample("ballots_accepted_total", task="flu") == 1
        coordinator.metrics.tasks.show(["flu"])
        assert coordinator.sample("ballots_accepted_total", task="flu") == 1


class TestRefusals:
    def test_every_code_of_the_catalogue_begins_at_nothing(self, coordinator: Coordinator) -> None:
        for name in ("refusals_total", "ballots_refused_total"):
            assert {coordinator.sample(name, code=code) for code in CATALOGUE} == {0}

    def test_a_refused_ballot_is_a_refused_call_but_not_the_other_way_round(
        self, coordinator: Coordinator
    ) -> None:
        coordinator.metrics.refused("PRIVACY_TOO_WEAK", CAST_BALLOT)
        coordinator.metrics.refused("RATE_LIMITED", "/consilium.v1.RoundsService/Heartbeat")
        counted = [
            coordinator.sample(name, code=code)
            for name in ("refusals_total", "ballots_refused_total")
            for code in ("PRIVACY_TOO_WEAK", "RATE_LIMITED")
        ]
        assert counted == [1, 1, 1, 0]

    def test_ballots_are_cast_by_the_method_that_is_counted(self) -> None:
        service = rounds_pb2.DESCRIPTOR.services_by_name["RoundsService"]
        method = service.methods_by_name["CastBallot"]
        assert f"/{service.full_name}/{method.name}" == CAST_BALLOT


def test_no_series_says_only_when_another_was_made(coordinator: Coordinator) -> None:
    coordinator.start("flu")
    coordinator.scraped()
    assert not [name for name, _ in coordinator.series() if name.endswith("_created")]
