"""What a hospital's own Prometheus may watch; nothing here leaves the hospital."""

from __future__ import annotations

import platform

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from wire import __version__


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
