"""The agent's metrics, for the hospital's own Prometheus; they do not leave the hospital."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from silo_agent.agent.metrics.privacy import PrivacyMetrics
from silo_agent.agent.metrics.tasks import TaskMetrics
from wire.consilium.v1 import trainer_pb2
from wire.enums import enum_name
from wire.runtime.process_metrics import register_process_metrics

# Created at 0: a counter that first appears at 1 never seems to have increased.
_RENEWALS = ("renewed", "failed")
_PAYLOADS = (("out", "ballot"), ("in", "consensus"), ("in", "public_set"), ("in", "extractor"))


class AgentMetrics:
    """Everything but the series of a task (`tasks`) and of the ledger (`privacy`)."""

    def __init__(self, registry: CollectorRegistry) -> None:
        register_process_metrics(registry, "agent")
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
        self._trainer_up = Gauge(
            "consilium_agent_trainer_up",
            "1 while the trainer answers.",
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
        for outcome in _RENEWALS:
            self.renewals.labels(outcome)
        self.clock_skew = Gauge(
            "consilium_agent_clock_skew_seconds",
            "How far this machine's clock is ahead of the coordinator's; negative if behind.",
            registry=registry,
        )
        self.bytes = Counter(
            "consilium_agent_payload_bytes",
            "Payload that crossed the firewall.",
            ["direction", "kind"],
            registry=registry,
        )
        for payload in _PAYLOADS:
            self.bytes.labels(*payload)
        self.privacy = PrivacyMetrics(registry)
        self.tasks = TaskMetrics(registry, self.privacy)

    def set_silo(self, silo: str) -> None:
        """Shows whose page this is."""
        self._info.labels(silo).set(1)

    def trainer_found(self, described: trainer_pb2.DescribeResponse) -> None:
        """Shows a trainer that answered, in place of the one before."""
        isolation = enum_name(trainer_pb2.Isolation, described.isolation)
        self._trainer.clear()
        self._trainer.labels(described.version, isolation).set(1)
        self._trainer_up.set(1)
        if described.HasField("privacy_totals"):
            self.privacy.show(described.privacy_totals)

    def trainer_lost(self) -> None:
        """Shows that the trainer did not answer; its last description stays."""
        self._trainer_up.set(0)
