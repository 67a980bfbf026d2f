"""The trainer's ledger in numbers, for the hospital's own page."""

from __future__ import annotations

import math

from prometheus_client import CollectorRegistry, Counter, Gauge

from wire.consilium.v1 import trainer_pb2
from wire.privacy.declaration import MICRO


class PrivacyMetrics:
    """What the data set and each running task have spent, and may spend."""

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

    def show(self, standing: trainer_pb2.PrivacyStanding, task: str = "") -> None:
        """Takes over what the trainer says, `task`'s share too if one is named."""
        self._set("", standing, "spent_micros", "budget_micros")
        if task:
            self._set(task, standing, "task_spent_micros", "task_budget_micros")
        entries = {
            "proved": standing.releases - standing.estimates,
            "estimate": standing.estimates,
        }
        # Not there before the ledger is: entries of years would look like releases of this minute.
        for cost, count in entries.items():
            self._releases.labels(cost).inc(max(0, count - self._seen[cost]))
            self._seen[cost] = count

    def forget(self, task: str) -> None:
        """The task spends nothing any more; what it cost the data set stays."""
        self._spent.remove(task)
        self._budget.remove(task)

    def _set(
        self, task: str, standing: trainer_pb2.PrivacyStanding, spent: str, budget: str
    ) -> None:
        known = standing.HasField(spent)  # type: ignore[arg-type]
        self._spent.labels(task).set(getattr(standing, spent) / MICRO if known else math.inf)
        if standing.HasField(budget):  # type: ignore[arg-type]
            self._budget.labels(task).set(getattr(standing, budget) / MICRO)
        else:
            self._budget.remove(task)
