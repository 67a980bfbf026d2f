"""What a hospital's own Prometheus may watch; nothing here leaves the hospital."""

from __future__ import annotations

import math

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from wire.consilium.v1 import trainer_pb2
from wire.privacy.declaration import MICRO
from wire.process_metrics import show_process

_LONG = (0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 14400, 86400)
"""Bounds for what takes as long as training does, in seconds."""


class AgentMetrics:
    """The agent's instruments."""

    def __init__(self, registry: CollectorRegistry) -> None:
        show_process(registry, "agent")
        self._info = Gauge(
            "consilium_agent_info",
            "Whose page this is; always 1.",
            ["silo"],
            registry=registry,
        )
        self._trainer = Gauge(
            "consilium_agent_trainer_info",
            "The trainer this agent found last; always 1.",
            ["version", "isolation"],
            registry=registry,
        )
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
            "From asking the trainer for a ballot to having it.",
            ["task"],
            buckets=_LONG,
            registry=registry,
        )
        self.training = TrainingMetrics(registry)
        self.privacy = PrivacyMetrics(registry)

    def belongs_to(self, silo: str) -> None:
        """Says whose page this is."""
        self._info.labels(silo).set(1)

    def trainer_found(self, described: trainer_pb2.DescribeResponse) -> None:
        """Takes over what a trainer says of itself; one before it is forgotten."""
        isolation = trainer_pb2.Isolation.Name(described.isolation).removeprefix("ISOLATION_")
        self._trainer.clear()
        self._trainer.labels(described.version, isolation.lower()).set(1)
        self.privacy.show(described.standing)


class TrainingMetrics:
    """The trainer's work in numbers."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._seconds = Histogram(
            "consilium_training_duration_seconds",
            "How long the trainer worked on a ballot or on the final model.",
            ["task"],
            buckets=_LONG,
            registry=registry,
        )
        self._units = Gauge(
            "consilium_training_units",
            "Patients, or rows where each row is protected by itself, in the latest training.",
            ["task"],
            registry=registry,
        )
        self._gpus = Gauge(
            "consilium_training_gpus",
            "GPUs the trainer computes on; 0 if it trains on the CPU.",
            ["task"],
            registry=registry,
        )

    def show(
        self, answer: trainer_pb2.VoteResponse | trainer_pb2.FinishResponse, task: str
    ) -> None:
        """Takes over what the trainer says of the training behind its answer, if there was one."""
        if answer.HasField("training"):
            report = answer.training
            self._seconds.labels(task).observe(report.duration.ToNanoseconds() / 1e9)
            self._units.labels(task).set(report.units)
            self._gpus.labels(task).set(report.gpus)


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
