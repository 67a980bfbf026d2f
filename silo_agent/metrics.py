"""What a hospital's own Prometheus may watch; nothing here leaves the hospital."""

from __future__ import annotations

import math
import platform

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from wire import __version__
from wire.consilium.v1 import trainer_pb2
from wire.privacy.declaration import MICRO


class AgentMetrics:
    """The agent's instruments."""

    def __init__(self, registry: CollectorRegistry) -> None:
        build = Gauge(
            "consilium_build_info",
            "Version of the software; always 1.",
            ["version", "python", "component"],
            registry=registry,
        )
        build.labels(__version__, platform.python_version(), "agent").set(1)
        self.connected = Gauge(
            "consilium_agent_connected",
            "1 while the coordinator's watch stream is open.",
            registry=registry,
        )
        self.certificate_expiry = Gauge(
            "consilium_certificate_expiry_timestamp_seconds",
            "When this silo's certificate expires.",
            registry=registry,
        )
        self.renewals = Counter(
            "consilium_agent_certificate_renewals",
            "Attempts to renew the certificate, by outcome: renewed or failed.",
            ["outcome"],
            registry=registry,
        )
        self.clock_skew = Gauge(
            "consilium_agent_clock_skew_seconds",
            "How far this machine's clock is ahead of the coordinator's; negative if behind.",
            registry=registry,
        )
        self.round = Gauge(
            "consilium_agent_round", "Last round voted in.", ["task"], registry=registry
        )
        self.waiting_for_approval = Gauge(
            "consilium_agent_waiting_for_approval",
            "1 while a person has yet to approve the task.",
            ["task"],
            registry=registry,
        )
        self.ballots = Counter(
            "consilium_agent_ballots",
            "Ballots by what became of them.",
            ["task", "outcome"],
            registry=registry,
        )
        self.bytes = Counter(
            "consilium_agent_payload_bytes",
            "Payload that crossed the firewall.",
            ["direction", "kind"],
            registry=registry,
        )
        self.vote_seconds = Histogram(
            "consilium_agent_vote_seconds",
            "How long the trainer took for a ballot.",
            ["task"],
            buckets=(0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 14400, 86400),
            registry=registry,
        )
        self.privacy = PrivacyMetrics(registry)


class PrivacyMetrics:
    """The trainer's ledger in numbers."""

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
        for cost, count in entries.items():
            self._releases.labels(cost).inc(max(0, count - self._seen[cost]))
            self._seen[cost] = count

    def _set(
        self, task: str, standing: trainer_pb2.PrivacyStanding, spent: str, budget: str
    ) -> None:
        known = standing.HasField(spent)  # type: ignore[arg-type]
        self._spent.labels(task).set(getattr(standing, spent) / MICRO if known else math.inf)
        if standing.HasField(budget):  # type: ignore[arg-type]
            self._budget.labels(task).set(getattr(standing, budget) / MICRO)
