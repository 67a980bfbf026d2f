"""An agent's page: what is on it from the start, what goes with a task's end, and that it stays small."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from patience import PATIENCE
from prometheus_client import CollectorRegistry

from silo_agent.agent import agent
from silo_agent.agent import worker as voting
from silo_agent.agent.audit.recorder import AuditLog
from silo_agent.agent.ballot_outcome import BallotOutcome
from silo_agent.agent.metrics.instruments import AgentMetrics
from silo_agent.agent.metrics.privacy import PrivacyMetrics
from silo_agent.agent.metrics.tasks import KEPT_SECONDS, MOST_TASKS, TaskMetrics
from silo_agent.agent.pace import Pace
from silo_agent.agent.worker import TaskWorker
from wire.consilium.v1 import task_pb2, trainer_pb2
from wire.errors import (
    APPROVAL_NEEDED,
    APPROVAL_REFUSED_BY_POLICY,
    APPROVAL_WITHDRAWN,
    TRAINER_UNREACHABLE,
    Fault,
    Refusal,
)

pytestmark = pytest.mark.slow

RUNNING, PAUSED, FINISHED = (
    task_pb2.TASK_STATUS_RUNNING,
    task_pb2.TASK_STATUS_PAUSED,
    task_pb2.TASK_STATUS_FINISHED,
)


class Page:
    """What a scrape would read."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.now = 0.0

    def tasks(self) -> TaskMetrics:
        return TaskMetrics(self.registry, PrivacyMetrics(self.registry), lambda: self.now)

    def __call__(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(f"consilium_{name}", labels)

    async def until(self, wanted: float | None, name: str, **labels: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while True:
                if self(name, **labels) == wanted:
                    return
                await asyncio.sleep(0.001)

    def of(self, task: str) -> set[str]:
        """The names of the series a task has."""
        return {sample.name for sample in self._samples() if sample.labels.get("task") == task}

    def shown(self) -> set[str]:
        """The tasks that have any; the data set, which has no name, is none of them."""
        return {sample.labels["task"] for sample in self._samples() if sample.labels.get("task")}

    def _samples(self) -> list[Any]:
        return [sample for family in self.registry.collect() for sample in family.samples]


@pytest.fixture
def page() -> Page:
    return Page()


def ballot(spent: float = 1.7, budget: float | None = 2.0) -> trainer_pb2.VoteResponse:
    answer = trainer_pb2.VoteResponse()
    answer.privacy_totals.spent_micros = answer.privacy_totals.budget_micros = 9_000_000
    answer.privacy_totals.task_spent_micros = int(spent * 1e6)
    if budget is not None:
        answer.privacy_totals.task_budget_micros = int(budget * 1e6)
    answer.training.duration.FromSeconds(3)
    return answer


def take_part(tasks: TaskMetrics, task: str) -> None:
    """One round from its opening to its vote."""
    tasks.begin(task)
    tasks.ballot_made(task, 3.5, ballot())
    tasks.ballot_sent(task, BallotOutcome.ACCEPTED)
    tasks.voted(task, 1)


class TestWhatIsCounted:
    def test_it_is_there_from_zero_so_that_the_first_increase_is_seen(self, page: Page) -> None:
        AgentMetrics(page.registry).tasks.begin("flu")
        for outcome in ("renewed", "failed"):
            assert page("agent_certificate_renewals_total", outcome=outcome) == 0
        payloads = {"ballot": "out", "consensus": "in", "public_set": "in", "extractor": "in"}
        for kind, direction in payloads.items():
            assert page("agent_payload_bytes_total", direction=direction, kind=kind) == 0
        for outcome in (
            "accepted",
            "round_closed",
            "not_a_participant",
            "ballot_conflict",
            "ballot_label_space",
            "privacy_too_weak",
        ):
            assert page("agent_ballots_total", task="flu", outcome=outcome) == 0
        assert page("agent_vote_seconds_count", task="flu") == 0
        assert page("training_duration_seconds_count", task="flu") == 0

    def test_a_ledger_of_years_is_no_increase(self, page: Page) -> None:
        shown = AgentMetrics(page.registry)
        assert page("privacy_releases_total", cost="proved") is None
        shown.privacy.show(trainer_pb2.PrivacyTotals(releases=500))
        assert page("privacy_releases_total", cost="proved") == 500
        assert page("privacy_releases_total", cost="estimate") == 0

    def test_another_round_takes_nothing_back(self, page: Page) -> None:
        tasks = page.tasks()
        take_part(tasks, "flu")
        tasks.begin("flu")
        assert page("agent_ballots_total", task="flu", outcome="accepted") == 1
        assert page("agent_vote_seconds_sum", task="flu") == 3.5


class TestTheEndOfATask:
    def test_its_budget_goes_at_once_and_the_data_sets_stays(self, page: Page) -> None:
        tasks = page.tasks()
        take_part(tasks, "flu")
        take_part(tasks, "stroke")
        tasks.end("flu")
        assert page("privacy_epsilon_spent", task="flu") is None
        assert page("privacy_epsilon_budget", task="flu") is None
        assert page("privacy_epsilon_spent", task="stroke") == 1.7
        assert page("privacy_epsilon_spent", task="") == 9
        assert page("privacy_epsilon_budget", task="") == 9

    def test_what_was_counted_is_shown_for_a_day_and_then_forgotten(self, page: Page) -> None:
        tasks = page.tasks()
        take_part(tasks, "flu")
        take_part(tasks, "stroke")
        tasks.end("flu")
        page.now = KEPT_SECONDS - 1
        # Its state is heard again, and its final model is trained late.
        tasks.end("flu")
        tasks.trained("flu", ballot())
        tasks.forget_ended()
        assert page("training_duration_seconds_count", task="flu") == 2
        page.now = KEPT_SECONDS + 1
        tasks.forget_ended()
        assert page.of("flu") == set()
        assert page("agent_round", task="stroke") == 1

    def test_one_that_goes_on_after_all_is_not_forgotten(self, page: Page) -> None:
        tasks = page.tasks()
        take_part(tasks, "flu")
        tasks.end("flu")
        take_part(tasks, "flu")
        page.now = 2 * KEPT_SECONDS
        tasks.forget_ended()
        assert page("agent_ballots_total", task="flu", outcome="accepted") == 2

    def test_one_that_ended_before_this_agent_started_is_not_shown(self, page: Page) -> None:
        tasks = page.tasks()
        tasks.end("flu")
        tasks.waiting("flu", False)
        tasks.trained("flu", trainer_pb2.FinishResponse())
        assert page.of("flu") == set()


def test_two_hundred_tasks_leave_the_series_of_a_hundred(page: Page) -> None:
    tasks = page.tasks()
    for number in range(200):
        take_part(tasks, f"task-{number}")
        tasks.waiting(f"task-{number}", True)
        take_part(tasks, "long")
        if number % 2:
            tasks.end(f"task-{number}")
    latest = {f"task-{number}" for number in range(200 - MOST_TASKS + 1, 200)}
    assert page.shown() == latest | {"long"}
    assert page("agent_ballots_total", task="long", outcome="accepted") == 200


def test_a_budget_that_is_no_longer_set_is_no_longer_shown(page: Page) -> None:
    tasks = page.tasks()
    tasks.ballot_made("flu", 1, ballot(budget=2))
    assert page("privacy_epsilon_budget", task="flu") == 2
    without = ballot(budget=None)
    without.privacy_totals.ClearField("budget_micros")
    tasks.ballot_made("flu", 1, without)
    assert page("privacy_epsilon_budget", task="flu") is None
    assert page("privacy_epsilon_budget", task="") is None
    assert page("privacy_epsilon_spent", task="flu") == 1.7


class Officer:
    """A trainer that only refuses: its hospital has not approved."""

    def __init__(self) -> None:
        self.refusal = Refusal(APPROVAL_NEEDED, task="flu", digest="ab")
        self.there = asyncio.Event()
        self.there.set()

    async def wait_ready(self) -> trainer_pb2.DescribeResponse:
        await self.there.wait()
        return trainer_pb2.DescribeResponse()

    async def propose(self, definition: task_pb2.TaskDefinition) -> None:
        raise self.refusal


class TestWaitingForApproval:
    """A task of which a round is open here, followed by a worker whose hospital does not approve."""

    @pytest.fixture
    def officer(self) -> Officer:
        return Officer()

    @pytest.fixture
    def follow(
        self, page: Page, officer: Officer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> Callable[..., None]:
        for pause in ("_APPROVAL_POLL_SECONDS", "_LATE_APPROVAL_POLL_SECONDS"):
            monkeypatch.setattr(voting, pause, 0.001)
        sets = SimpleNamespace(has=lambda digest: True)
        exchange: Any = SimpleNamespace(public_sets=sets)
        link: Any = SimpleNamespace(identity=SimpleNamespace(name="north"))
        audit = AuditLog(tmp_path, lambda: datetime(2026, 3, 1, tzinfo=UTC))

        def follow(*steps: tuple[Callable[[TaskWorker], None], float | None]) -> None:
            async def scenario() -> None:
                metrics = AgentMetrics(page.registry)
                worker = TaskWorker(link, cast(Any, officer), exchange, audit, metrics, Pace(0))
                work = asyncio.create_task(worker.run())
                for act, wanted in steps:
                    act(worker)
                    await page.until(wanted, "agent_waiting_for_approval", task="flu")
                    # And it stays so, however often the hospital is asked.
                    await asyncio.sleep(0.02)
                    assert page("agent_waiting_for_approval", task="flu") == wanted
                work.cancel()

            asyncio.run(scenario())

        return follow

    @staticmethod
    def becomes(status: Any) -> Callable[[TaskWorker], None]:
        definition = task_pb2.TaskDefinition(name="flu")
        state = task_pb2.TaskState(definition=definition, digest="ab", status=status)
        if status == RUNNING:
            state.open_round.number = 1
            state.open_round.expected.append("north")
        return lambda worker: worker.update(state)

    def test_it_waits_only_while_it_runs(self, follow: Callable[..., None]) -> None:
        follow(
            (self.becomes(PAUSED), None),
            (self.becomes(RUNNING), 1),
            (self.becomes(PAUSED), 0),
            (self.becomes(RUNNING), 1),
            (self.becomes(FINISHED), 0),
        )

    def test_a_dead_trainer_does_not_keep_a_paused_task_waiting(
        self, follow: Callable[..., None], officer: Officer
    ) -> None:
        follow(
            (self.becomes(RUNNING), 1),
            (lambda worker: officer.there.clear(), 1),
            (self.becomes(PAUSED), 0),
        )

    @pytest.mark.parametrize("fault", [APPROVAL_REFUSED_BY_POLICY, APPROVAL_WITHDRAWN])
    def test_a_no_is_a_decision(
        self, follow: Callable[..., None], officer: Officer, fault: Fault
    ) -> None:
        no = Refusal(fault, task="flu", digest="ab", why="max_rounds is 2")
        follow(
            (self.becomes(RUNNING), 1),
            (lambda worker: setattr(officer, "refusal", no), 0),
        )


class Trainer:
    """One that is there or is not."""

    def __init__(self) -> None:
        self.there = asyncio.Event()

    async def describe(self) -> trainer_pb2.DescribeResponse:
        if not self.there.is_set():
            raise Refusal(TRAINER_UNREACHABLE, socket="trainer.sock")
        return trainer_pb2.DescribeResponse(version="1", isolation=trainer_pb2.ISOLATION_NONE)

    async def wait_ready(self) -> trainer_pb2.DescribeResponse:
        await self.there.wait()
        return await self.describe()


def test_a_trainer_is_looked_at_from_the_start_and_while_nothing_is_asked_of_it(
    page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent, "_TRAINER_POLL_SECONDS", 0.001)
    trainer, unused = Trainer(), cast(Any, None)

    class Link:
        identity = SimpleNamespace(name="north", coordinator_address="example.org:7443")

        async def watch(self, *given: object) -> Any:
            await asyncio.Event().wait()
            yield

        async def leave(self, instance: str) -> None:
            pass

    async def scenario() -> None:
        metrics, link = AgentMetrics(page.registry), cast(Any, Link())
        made = agent.Agent(link, cast(Any, trainer), unused, unused, metrics, "i", unused, unused)
        running = asyncio.create_task(made.run())
        await asyncio.sleep(0.01)
        # Whose page it is can be seen before there is a trainer.
        assert page("agent_info", silo="north") == 1
        assert page("agent_trainer_up") == 0
        for act, up in ((trainer.there.set, 1), (trainer.there.clear, 0), (trainer.there.set, 1)):
            act()
            await page.until(up, "agent_trainer_up")
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(scenario())
