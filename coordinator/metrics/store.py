"""Gauges read from the store at every scrape, so that every replica shows the same and nothing goes stale."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from statistics import median
from threading import Lock, Thread

import structlog
from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from coordinator.consensus import release_of
from coordinator.round_engine import Round
from coordinator.store import Store
from coordinator.store.records import MemberStatus, SiloRecord, TaskAgreement, TaskRecord
from wire.consilium.v1 import rounds_pb2
from wire.errors import Refusal
from wire.runtime.logs import exception_summary
from wire.task.definition import TaskStatus

log = structlog.get_logger()

_FINISHED_SHOWN = timedelta(days=1)
"""How long a finished task is shown: methods of one round are finished as soon as there is any."""
_MOST_TASKS = 100
_LEAST_FOR_MEDIAN = 3
"""Of fewer silos a median tells one of them what another voted."""
_READ_SECONDS = 3.0
"""How long a scrape waits for the store: Prometheus discards a page that comes too late."""
_CANNOT_VOTE = (rounds_pb2.ACTIVITY_WAITING_FOR_APPROVAL, rounds_pb2.ACTIVITY_REFUSED_BY_POLICY)
_VERSION = re.compile(r"\d{1,3}\.\d{1,3}\.\d{1,3}", re.ASCII)


@dataclass(frozen=True)
class StoreSnapshot:
    """The store at one moment, as far as operators watch it."""

    silos: Sequence[SiloRecord] = ()
    tasks: Sequence[TaskRecord] = ()
    agreements: Sequence[TaskAgreement] = ()
    draws: Mapping[str, int] = field(default_factory=dict)
    """How often party-level noise was drawn for a consensus that became known, by task."""

    def watched(self, now: datetime) -> list[TaskRecord]:
        """Tasks that are not drafts and did not end long ago; the hundred that changed last."""

        def current(task: TaskRecord) -> bool:
            match task.status:
                case TaskStatus.DRAFT:
                    return False
                case TaskStatus.RUNNING | TaskStatus.PAUSED:
                    return True
                case TaskStatus.FINISHED:
                    latest = task.latest
                    return latest is not None and latest.closed_at >= now - _FINISHED_SHOWN

        newest = sorted(filter(current, self.tasks), key=lambda task: -task.revision)
        return newest[:_MOST_TASKS]


def read_snapshot(store: Store, now: datetime) -> StoreSnapshot:
    """Reads what the page shows."""
    return StoreSnapshot(
        silos=store.silos.all(),
        tasks=store.tasks.all(),
        agreements=store.tasks.agreements(now - _FINISHED_SHOWN),
        draws=store.party_ledger.draws(),
    )


class StoreCollector(Collector):
    """The families below, and whether the store answered; without it the page shows everything else.

    With `per_silo` there are series that name silos. `shown` is called with the tasks on the page, so that counters are kept for the same ones.
    A read that takes longer than `timeout` seconds goes on in its thread; no other is begun meanwhile.
    """

    def __init__(
        self,
        read: Callable[[datetime], StoreSnapshot],
        clock: Callable[[], datetime],
        shown: Callable[[Iterable[str]], None] = lambda tasks: None,
        timeout: float = _READ_SECONDS,
        *,
        per_silo: bool = False,
    ) -> None:
        self._read = read
        self._clock = clock
        self._shown = shown
        self._timeout = timeout
        self._per_silo = per_silo
        self._lock = Lock()
        self._reading: Future[StoreSnapshot] | None = None

    def describe(self) -> Iterable[Metric]:
        """The families without samples, so that registering does not touch the store."""
        return [_up(None), *families(StoreSnapshot(), self._clock(), per_silo=self._per_silo)]

    def collect(self) -> Iterable[Metric]:
        """The families as the store stands now."""
        try:
            seen = self._current_read().result(self._timeout)
        except (Refusal, TimeoutError):
            return [_up(False)]
        except Exception as error:
            log.error("metrics_not_read", **exception_summary(error))
            return [_up(False)]
        now = self._clock()
        self._shown(task.name for task in seen.watched(now))
        return [_up(True), *families(seen, now, per_silo=self._per_silo)]

    def _current_read(self) -> Future[StoreSnapshot]:
        with self._lock:
            if self._reading is None or self._reading.done():
                self._reading = Future()
                # A daemon thread: a database that does not answer must not keep the process from ending.
                Thread(target=self._read_into, args=(self._reading,), daemon=True).start()
            return self._reading

    def _read_into(self, future: Future[StoreSnapshot]) -> None:
        try:
            future.set_result(self._read(self._clock()))
        except BaseException as error:
            future.set_exception(error)


def families(seen: StoreSnapshot, now: datetime, *, per_silo: bool) -> list[Metric]:
    """Everything the store tells, as Prometheus reads it; silos by name only if `per_silo`."""
    named = [*_silo_families(seen.silos, now), _agreement_family(seen.agreements)]
    return [
        *_consortium_families(seen.silos, now),
        *_task_families(seen.watched(now), seen.draws),
        *_round_families(seen, now),
        _median_agreement_family(seen.agreements),
        *(named if per_silo else ()),
    ]


@dataclass(frozen=True)
class _Gauge:
    """A family being filled."""

    name: str
    help: str
    labels: tuple[str, ...]
    samples: dict[tuple[str, ...], float] = field(default_factory=dict)

    def family(self) -> GaugeMetricFamily:
        made = GaugeMetricFamily(self.name, self.help, labels=self.labels)
        for labels, value in self.samples.items():
            made.add_metric(labels, value)
        return made


def _up(answered: bool | None) -> Metric:
    up = _Gauge("consilium_store_up", "1 if the store answered this scrape in time.", ())
    if answered is not None:
        up.samples[()] = answered
    return up.family()


def _consortium_families(silos: Sequence[SiloRecord], now: datetime) -> list[Metric]:
    """All silos together."""
    number = _Gauge("consilium_silos", "Silos by their status.", ("status",))
    connected = _Gauge("consilium_silos_connected", "Active silos whose lease runs.", ())
    expiry = _Gauge(
        "consilium_silos_certificate_expiry_timestamp_seconds",
        "When the first of the active silos' certificates expires.",
        (),
    )
    counted = Counter(silo.status for silo in silos)
    number.samples.update({(str(status),): counted[status] for status in MemberStatus})
    active = [silo for silo in silos if silo.status is MemberStatus.ACTIVE]
    connected.samples[()] = sum(silo.connected(now) for silo in active)
    ends = [
        silo.certificate_expires_at.timestamp()
        for silo in active
        if silo.certificate_expires_at is not None
    ]
    if ends:
        expiry.samples[()] = min(ends)
    return [one.family() for one in (number, connected, expiry)]


def _silo_families(silos: Sequence[SiloRecord], now: datetime) -> list[Metric]:
    """Each silo by its name."""
    connected = _Gauge(
        "consilium_silo_connected", "1 while the lease of an active silo runs.", ("silo",)
    )
    last_seen = _Gauge(
        "consilium_silo_last_seen_timestamp_seconds", "Last sign of life of a silo.", ("silo",)
    )
    expiry = _Gauge(
        "consilium_silo_certificate_expiry_timestamp_seconds",
        "When the newest certificate of a silo expires.",
        ("silo",),
    )
    version = _Gauge(
        "consilium_silo_version_info", "What a silo's agent runs; always 1.", ("silo", "version")
    )
    for silo in silos:
        if silo.status is MemberStatus.ACTIVE:
            connected.samples[(silo.name,)] = silo.connected(now)
        if silo.status is not MemberStatus.REVOKED and silo.last_seen_at is not None:
            last_seen.samples[(silo.name,)] = silo.last_seen_at.timestamp()
            version.samples[(silo.name, _bounded(silo.agent_version))] = 1
        if silo.certificate_expires_at is not None:
            expiry.samples[(silo.name,)] = silo.certificate_expires_at.timestamp()
    return [one.family() for one in (connected, last_seen, expiry, version)]


def _bounded(version: str) -> str:
    """A silo says what it likes; a label says a release or nothing."""
    return version if _VERSION.fullmatch(version) else "other"


def _task_families(tasks: Sequence[TaskRecord], draws: Mapping[str, int]) -> list[Metric]:
    status = _Gauge(
        "consilium_task_status", "1 for the present status of a task.", ("task", "status")
    )
    churn = _Gauge(
        "consilium_consensus_churn_ratio",
        "Share of rows whose label changed in the last consensus.",
        ("task",),
    )
    abstention = _Gauge(
        "consilium_consensus_abstention_ratio",
        "Share of rows without a label in the last consensus.",
        ("task",),
    )
    party_epsilon = _Gauge(
        "consilium_party_epsilon_spent",
        "What noisy consensuses of a task have cost each silo, at δ = 0; 0 without party-level noise.",
        ("task",),
    )
    for task in tasks:
        key, rows = (task.name,), max(1, task.definition.rows)
        status.samples[(task.name, str(task.status))] = 1
        release = release_of(task.definition)
        drawn = draws.get(task.name, 0)
        party_epsilon.samples[key] = drawn * (release.pure_epsilon if release else 0.0)
        if task.latest is not None:
            churn.samples[key] = task.latest.changed_rows / rows
            abstention.samples[key] = task.latest.abstained_rows / rows
    return [one.family() for one in (status, churn, abstention, party_epsilon)]


def _round_families(seen: StoreSnapshot, now: datetime) -> list[Metric]:
    open_ = _Gauge("consilium_round_open", "Number of the open round; 0 if none.", ("task",))
    received = _Gauge("consilium_round_votes_received", "Ballots in the open round.", ("task",))
    expected = _Gauge(
        "consilium_round_votes_expected", "Silos expected to vote in the open round.", ("task",)
    )
    needed = _Gauge(
        "consilium_round_votes_needed", "Ballots without which no consensus is formed.", ("task",)
    )
    possible = _Gauge(
        "consilium_round_votes_possible",
        "Ballots in the open round, and silos that are connected and could still vote.",
        ("task",),
    )
    opened = _Gauge(
        "consilium_round_opened_timestamp_seconds", "When the open round was opened.", ("task",)
    )
    deadline = _Gauge(
        "consilium_round_deadline_timestamp_seconds",
        "When the open round closes at the latest.",
        ("task",),
    )
    missed = _Gauge(
        "consilium_round_deadlines_missed",
        "Deadlines that passed while the round had too few ballots.",
        ("task",),
    )
    able = {silo.name for silo in seen.silos if _able(silo, now)}
    for task in seen.watched(now):
        key, current = (task.name,), _running_round(task)
        open_.samples[key] = 0
        if task.open_round is not None:
            missed.samples[key] = _missed_deadlines(task, task.open_round)
        if current is not None:
            open_.samples[key] = current.number
            received.samples[key] = len(current.voted)
            expected.samples[key] = len(current.expected)
            needed.samples[key] = task.definition.rounds.quorum
            possible.samples[key] = len(current.voted | (current.expected & able))
            opened.samples[key] = current.opened_at.timestamp()
            deadline.samples[key] = current.closes_at.timestamp()
    shown = (open_, received, expected, needed, possible, opened, deadline, missed)
    return [one.family() for one in shown]


def _running_round(task: TaskRecord) -> Round | None:
    """The round that takes ballots; None while the task is paused."""
    return task.open_round if task.status is TaskStatus.RUNNING else None


def _missed_deadlines(task: TaskRecord, current: Round) -> int:
    """Deadlines below the quorum; 0 once an admin has paused the task, who knows what was missed."""
    return current.extensions if task.status is TaskStatus.RUNNING or task.stalled else 0


def _able(silo: SiloRecord, now: datetime) -> bool:
    """True if it could vote as things are: it may, it is there, and no person or policy holds it up."""
    active = silo.status is MemberStatus.ACTIVE
    return active and silo.connected(now) and silo.activity not in _CANNOT_VOTE


def _median_agreement_family(agreements: Sequence[TaskAgreement]) -> Metric:
    middle = _Gauge(
        "consilium_task_agreement_median_ratio",
        "Median over silos of the share of votes in the latest round that the consensus confirms.",
        ("task",),
    )
    for task in agreements:
        shares = [rows.same / rows.compared for rows in task.silos.values() if rows.compared]
        if len(shares) >= _LEAST_FOR_MEDIAN:
            middle.samples[(task.task,)] = median(shares)
    return middle.family()


def _agreement_family(agreements: Sequence[TaskAgreement]) -> Metric:
    shares: Mapping[tuple[str, ...], float] = {
        (task.task, silo): rows.same / rows.compared
        for task in agreements
        for silo, rows in task.silos.items()
        if rows.compared
    }
    return _Gauge(
        "consilium_silo_agreement_ratio",
        "Share of a silo's votes in the latest round that the consensus confirms.",
        ("task", "silo"),
        dict(shares),
    ).family()
