"""What is read from the store at every scrape: silos, tasks, rounds, and whether there was an answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from threading import Event

import pytest
from patience import PATIENCE
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from coordinator.consensus import Agreement
from coordinator.metrics.instruments import Metrics
from coordinator.metrics.store import StoreCollector, StoreSnapshot
from coordinator.round_engine import ClosedBy, Round
from coordinator.store.records import (
    ClosedRound,
    MemberStatus,
    SiloRecord,
    TaskAgreement,
    TaskRecord,
)
from wire.consilium.v1 import rounds_pb2
from wire.errors import STORE_UNAVAILABLE, Refusal
from wire.task.definition import TaskDefinition, TaskStatus

pytestmark = pytest.mark.slow

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def silo(name: str, **other: object) -> SiloRecord:
    connected = SiloRecord(
        name=name,
        status=MemberStatus.ACTIVE,
        registered_at=NOW,
        certificate_expires_at=NOW + timedelta(days=7),
        lease_instance="i",
        lease_until=NOW + MINUTE,
        last_seen_at=NOW - MINUTE,
        activity=1,
        agent_version="0.1.0",
    )
    return replace(connected, **other)  # type: ignore[arg-type]


def task(
    name: str,
    status: TaskStatus = TaskStatus.RUNNING,
    current: Round | None = None,
    latest: ClosedRound | None = None,
    revision: int = 1,
) -> TaskRecord:
    definition = TaskDefinition.model_validate(
        {
            "name": name,
            "public_set": "wards",
            "rows": 40,
            "labels": ["ill", "well"],
            "rounds": {"quorum": 3, "max_extensions": 1},
        }
    )
    return TaskRecord(definition, "d", status, "", revision, current, latest)


def closed(number: int, closed_at: datetime = NOW) -> ClosedRound:
    by = ClosedBy.EVERYONE
    return ClosedRound(number, NOW - MINUTE, closed_at, by, "", 5, 10, 4, 3, ())


def open_round(**other: object) -> Round:
    expected = frozenset({"north", "south", "east", "west"})
    current = Round("flu", 2, NOW - MINUTE, NOW + MINUTE, expected, frozenset({"north"}))
    return replace(current, **other)  # type: ignore[arg-type]


class Page:
    """A page made of what the store held when it was asked."""

    def __init__(self, *silos: SiloRecord, tasks: tuple[TaskRecord, ...] = ()) -> None:
        self.registry = CollectorRegistry()
        self.registry.register(
            StoreCollector(lambda now: StoreSnapshot(silos, tasks), lambda: NOW, per_silo=True)
        )

    def sample(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"consilium_{name}", labels)

    def labels(self, name: str) -> list[dict[str, str]]:
        (family,) = (f for f in self.registry.collect() if f.name == f"consilium_{name}")
        return [sample.labels for sample in family.samples]


class TestSilos:
    def test_only_active_silos_are_expected_to_be_connected(self) -> None:
        page = Page(
            silo("north"),
            silo("late", lease_until=NOW - MINUTE),
            silo("held", status=MemberStatus.SUSPENDED),
            silo("gone", status=MemberStatus.REVOKED, certificate_expires_at=None),
            silo("new", status=MemberStatus.INVITED, last_seen_at=None, agent_version=""),
        )
        assert (page.sample("silo_connected", silo="north"), page.sample("store_up")) == (1, 1)
        assert page.sample("silo_connected", silo="late") == 0
        assert [one["silo"] for one in page.labels("silo_connected")] == ["north", "late"]
        seen = [one["silo"] for one in page.labels("silo_last_seen_timestamp_seconds")]
        assert seen == ["north", "late", "held"]
        expiry = "silo_certificate_expiry_timestamp_seconds"
        assert page.sample(expiry, silo="held") == (NOW + timedelta(days=7)).timestamp()
        assert page.sample(expiry, silo="gone") is None
        counted = {status: page.sample("silos", status=str(status)) for status in MemberStatus}
        assert counted == {"invited": 1, "active": 2, "suspended": 1, "revoked": 1}

    @pytest.mark.parametrize("said", ["", "1.2", "0.1.0-of-our-own", "9999.1.1", "1.2.3\n"])
    def test_a_silo_cannot_invent_versions(self, said: str) -> None:
        page = Page(silo("north"), silo("south", agent_version=said))
        assert page.labels("silo_version_info") == [
            {"silo": "north", "version": "0.1.0"},
            {"silo": "south", "version": "other"},
        ]


class TestRounds:
    def test_an_open_round_says_who_may_still_vote(self) -> None:
        # North has voted and left; south is there; of east's lease nothing is left; west is unknown.
        silos = (
            silo("north", lease_until=None),
            silo("south"),
            silo("east", lease_until=NOW - MINUTE),
            silo("stranger"),
        )
        page = Page(*silos, tasks=(task("flu", current=open_round(), latest=closed(1)),))
        votes = [
            page.sample(f"round_votes_{kind}", task="flu")
            for kind in ("received", "possible", "needed", "expected")
        ]
        assert votes == [1, 2, 3, 4]
        assert page.sample("round_open", task="flu") == 2
        opened, deadline = NOW - MINUTE, NOW + MINUTE
        assert page.sample("round_opened_timestamp_seconds", task="flu") == opened.timestamp()
        assert page.sample("round_deadline_timestamp_seconds", task="flu") == deadline.timestamp()
        assert page.sample("consensus_churn_ratio", task="flu") == 0.25
        assert page.sample("consensus_abstention_ratio", task="flu") == 0.1

    def test_a_suspended_silo_is_not_waited_for(self) -> None:
        held = silo("south", status=MemberStatus.SUSPENDED)
        page = Page(held, tasks=(task("flu", current=open_round()),))
        assert page.sample("round_votes_possible", task="flu") == 1

    @pytest.mark.parametrize("held_up", ["WAITING_FOR_APPROVAL", "REFUSED_BY_POLICY"])
    def test_a_silo_whose_hospital_has_not_approved_cannot_vote(self, held_up: str) -> None:
        activity = rounds_pb2.Activity.Value(f"ACTIVITY_{held_up}")
        spent = silo("east", activity=rounds_pb2.ACTIVITY_BUDGET_SPENT)
        # What north is held up by is another task: in this one it has voted.
        silos = (silo("north", activity=activity), silo("south", activity=activity), spent)
        page = Page(*silos, tasks=(task("flu", current=open_round()),))
        assert page.sample("round_votes_possible", task="flu") == 2

    @pytest.mark.parametrize(
        ("status", "current", "missed"),
        [
            (TaskStatus.RUNNING, open_round(), 0),
            (TaskStatus.RUNNING, open_round(extensions=1), 1),
            # About to be extended: the scheduler has yet to look.
            (TaskStatus.RUNNING, open_round(closes_at=NOW - MINUTE), 0),
            # Extended as often as allowed, then paused by the coordinator.
            (TaskStatus.PAUSED, open_round(extensions=2, closes_at=NOW - MINUTE), 2),
            # Held by an admin, and then the deadline passed: in good time, once extended, with a quorum.
            (TaskStatus.PAUSED, open_round(closes_at=NOW - MINUTE), 0),
            (TaskStatus.PAUSED, open_round(extensions=1, closes_at=NOW - MINUTE), 0),
            (TaskStatus.PAUSED, open_round(closes_at=NOW - MINUTE, quorum_at=NOW - MINUTE), 0),
        ],
    )
    def test_deadlines_that_passed_below_the_quorum_are_counted(
        self, status: TaskStatus, current: Round, missed: int
    ) -> None:
        page = Page(tasks=(task("flu", status, current),))
        assert page.sample("round_deadlines_missed", task="flu") == missed
        running = status is TaskStatus.RUNNING
        assert page.sample("round_open", task="flu") == (2 if running else 0)
        assert (page.sample("round_deadline_timestamp_seconds", task="flu") is None) is not running
        assert page.labels("task_status") == [{"task": "flu", "status": str(status)}]

    def test_drafts_and_tasks_that_ended_long_ago_are_not_shown(self) -> None:
        yesterday = NOW - timedelta(hours=25)
        page = Page(
            tasks=(
                task("draft", TaskStatus.DRAFT),
                task("old", TaskStatus.FINISHED, latest=closed(3, yesterday)),
                task("recent", TaskStatus.FINISHED, latest=closed(3)),
            )
        )
        assert page.labels("task_status") == [{"task": "recent", "status": "finished"}]
        assert page.sample("round_open", task="recent") == 0

    def test_of_very_many_tasks_the_hundred_that_changed_last_are_shown(self) -> None:
        page = Page(tasks=tuple(task(f"t{number}", revision=number) for number in range(130)))
        shown = {one["task"] for one in page.labels("round_open")}
        assert shown == {f"t{number}" for number in range(30, 130)}


def reading(
    read: Callable[[datetime], StoreSnapshot], timeout: float = 30, *, per_silo: bool = True
) -> CollectorRegistry:
    registry = CollectorRegistry()
    Metrics(registry)
    registry.register(StoreCollector(read, lambda: NOW, timeout=timeout, per_silo=per_silo))
    return registry


class TestTheStoreItself:
    def test_agreement_is_of_those_who_were_compared(self) -> None:
        north, silent = Agreement(8, 6), Agreement(0, 0)
        found = StoreSnapshot(agreements=[TaskAgreement("flu", {"north": north, "silent": silent})])
        registry = reading(lambda now: found)

        def share(silo: str) -> float | None:
            labels = {"task": "flu", "silo": silo}
            return registry.get_sample_value("consilium_silo_agreement_ratio", labels)

        assert (share("north"), share("silent")) == (0.75, None)

    def test_unless_asked_for_no_series_names_a_silo(self) -> None:
        votes = {name: Agreement(8, same) for name, same in zip("abc", (2, 6, 8), strict=True)}
        silos = [silo("a"), silo("b", lease_until=NOW - MINUTE), silo("c")]
        found = StoreSnapshot(silos, agreements=[TaskAgreement("flu", votes)])
        registry = reading(lambda now: found, per_silo=False)
        samples = [sample for family in registry.collect() for sample in family.samples]
        assert not [sample for sample in samples if "silo" in sample.labels]
        assert registry.get_sample_value("consilium_silos_connected") == 2
        median = "consilium_task_agreement_median_ratio"
        assert registry.get_sample_value(median, {"task": "flu"}) == 0.75
        assert registry.get_sample_value("consilium_silos_certificate_expiry_timestamp_seconds")

    def test_of_two_silos_the_median_would_tell_one_of_the_other(self) -> None:
        votes = {"a": Agreement(8, 2), "b": Agreement(8, 6)}
        found = StoreSnapshot(agreements=[TaskAgreement("flu", votes)])
        registry = reading(lambda now: found, per_silo=False)
        median = "consilium_task_agreement_median_ratio"
        assert registry.get_sample_value(median, {"task": "flu"}) is None

    def test_registering_does_not_touch_it(self) -> None:
        asked: list[datetime] = []
        registry = reading(lambda now: asked.append(now) or StoreSnapshot())  # type: ignore[func-returns-value]
        assert asked == []
        assert registry.get_sample_value("consilium_store_up") == 1
        assert asked == [NOW]

    @pytest.mark.parametrize("error", [Refusal(STORE_UNAVAILABLE), ValueError("a row's content")])
    def test_without_it_the_page_shows_everything_else(self, error: Exception) -> None:
        def gone(now: datetime) -> StoreSnapshot:
            raise error

        with capture_logs() as lines:
            shown = {family.name: family.samples for family in reading(gone).collect()}
        assert [sample.value for sample in shown["consilium_store_up"]] == [0]
        assert "consilium_silos" not in shown
        assert shown["consilium_build_info"]
        assert "content" not in str(lines)
        # What is no outage is told, for it is a mistake of ours.
        assert bool(lines) is isinstance(error, ValueError)

    def test_one_that_does_not_answer_holds_up_no_page_and_is_asked_once(self) -> None:
        asked, answers = Event(), Event()
        calls: list[datetime] = []

        def hang(now: datetime) -> StoreSnapshot:
            calls.append(now)
            asked.set()
            answers.wait(PATIENCE)
            return StoreSnapshot()

        collector = StoreCollector(hang, lambda: NOW, timeout=0)
        with capture_logs() as lines:
            for _ in range(3):
                (up,) = collector.collect()
                assert up.samples[0].value == 0
        assert lines == []
        assert asked.wait(PATIENCE)
        assert len(calls) == 1
        answers.set()
        # An answer that came too late is no answer to the next scrape.
        collector = StoreCollector(hang, lambda: NOW, timeout=30)
        assert len(list(collector.collect())) > 5
        assert len(list(collector.collect())) > 5
        assert len(calls) == 3
