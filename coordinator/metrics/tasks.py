"""Counters by task: they begin at 0 and are removed with the task from the metrics page."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from threading import Lock

from prometheus_client import CollectorRegistry, Counter, Histogram

from coordinator.round_engine import ClosedBy


class TaskMetrics:
    """Ballots and rounds by task, for as long as the page shows the task."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._ballots = Counter(
            "consilium_ballots_accepted", "Ballots stored.", ["task"], registry=registry
        )
        self._bytes = Counter(
            "consilium_ballot_bytes", "Bytes of ballots stored.", ["task"], registry=registry
        )
        self._closed = Counter(
            "consilium_rounds_closed", "Rounds closed.", ["task", "by"], registry=registry
        )
        self._seconds = Histogram(
            "consilium_round_duration_seconds",
            "From opening a round to its consensus.",
            ["task"],
            buckets=(0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 14400, 86400),
            registry=registry,
        )
        self._lock = Lock()
        self._counted: set[str] = set()
        self._settled: set[str] = set()

    def ballot_stored(self, task: str, size: int) -> None:
        """Counts a ballot of `size` bytes."""
        with self._lock:
            self._begin(task)
            self._ballots.labels(task).inc()
            self._bytes.labels(task).inc(size)

    def round_closed(self, task: str, by: ClosedBy, took: timedelta) -> None:
        """Counts a round that this replica closed."""
        with self._lock:
            self._begin(task)
            self._closed.labels(task, str(by)).inc()
            self._seconds.labels(task).observe(took.total_seconds())

    def show(self, tasks: Iterable[str]) -> None:
        """Tasks the page shows from now on: new ones begin at 0, others are forgotten.

        One that was counted since the last time is kept once more: `tasks` may have been read before it began.
        """
        shown = set(tasks)
        with self._lock:
            for task in shown:
                self._begin(task)
            for task in self._settled - shown:
                self._forget(task)
            self._settled = set(self._counted)

    def _begin(self, task: str) -> None:
        """What begins at 1 has not increased, as Prometheus sees it; hence every series begins at 0."""
        if task in self._counted:
            return
        self._counted.add(task)
        for family in (self._ballots, self._bytes, self._seconds):
            family.labels(task)
        for by in ClosedBy:
            self._closed.labels(task, str(by))

    def _forget(self, task: str) -> None:
        self._counted.discard(task)
        for family in (self._ballots, self._bytes, self._seconds):
            family.remove(task)
        for by in ClosedBy:
            self._closed.remove(task, str(by))
