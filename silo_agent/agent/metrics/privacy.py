"""Metrics of the trainer's privacy ledger."""

from __future__ import annotations

import math

from prometheus_client import CollectorRegistry, Counter, Gauge

from wire.consilium.v1 import trainer_pb2
from wire.privacy.declaration import MICRO


class PrivacyMetrics:
    """Spent and budgeted ε of the data set and of each running task."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._spent = Gauge(
            "consilium_privacy_epsilon_spent",
            "Privacy loss so far: of one task, or of the data set over its lifetime (task is empty). +Inf without noise.",
            ["task"],
            registry=registry,
        )
        self._budget = Gauge(
            "consilium_privacy_epsilon_budget",
            "What may be spent, where a budget is set.",
            ["task"],
            registry=registry,
        )
        self._releases = Counter(
            "consilium_privacy_releases",
            "Entries of the ledger, by what their cost is: proved or an estimate.",
            ["cost"],
            registry=registry,
        )
        self._seen = {"proved": 0, "estimate": 0}

    def show(self, totals: trainer_pb2.PrivacyTotals, task: str = "") -> None:
        """Shows the trainer's totals, and those of `task` if one is named."""
        self._set("", totals, "spent_micros", "budget_micros")
        if task:
            self._set(task, totals, "task_spent_micros", "task_budget_micros")
        entries = {
            "proved": totals.releases - totals.estimates,
            "estimate": totals.estimates,
        }
        # The series starts at the ledger's count, not at 0: old entries would look like new releases.
        for cost, count in entries.items():
            self._releases.labels(cost).inc(max(0, count - self._seen[cost]))
            self._seen[cost] = count

    def forget(self, task: str) -> None:
        """Removes the series of a task that ended; the data set's stay."""
        self._spent.remove(task)
        self._budget.remove(task)

    def _set(self, task: str, totals: trainer_pb2.PrivacyTotals, spent: str, budget: str) -> None:
        known = totals.HasField(spent)  # type: ignore[arg-type]
        self._spent.labels(task).set(getattr(totals, spent) / MICRO if known else math.inf)
        if totals.HasField(budget):  # type: ignore[arg-type]
            self._budget.labels(task).set(getattr(totals, budget) / MICRO)
        else:
            self._budget.remove(task)
