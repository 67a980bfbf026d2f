"""What the coordinator counts. The registry is passed in; nothing here is global, no label is unbounded."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from coordinator.metrics_calls import CallMetrics, StoreMetrics
from wire.process_metrics import show_process


class Metrics:
    """The coordinator's instruments."""

    def __init__(self, registry: CollectorRegistry) -> None:
        show_process(registry, "coordinator")
        self.calls = CallMetrics(registry)
        self.store = StoreMetrics(registry)
        self.ballots = Counter(
            "consilium_ballots_accepted", "Ballots stored.", ["task"], registry=registry
        )
        self.ballot_bytes = Counter(
            "consilium_ballot_bytes", "Bytes of ballots stored.", ["task"], registry=registry
        )
        self.refusals = Counter(
            "consilium_refusals",
            "Calls refused, by the error catalogue's code.",
            ["code"],
            registry=registry,
        )
        self.handshakes_refused = Counter(
            "consilium_tls_handshakes_refused",
            "Connections that never became a call, by reason.",
            ["reason"],
            registry=registry,
        )
        self.renewals = Counter(
            "consilium_certificate_renewals",
            "Certificates renewed: silo, admin or server.",
            ["kind"],
            registry=registry,
        )
        self.server_expiry = Gauge(
            "consilium_server_certificate_expiry_timestamp_seconds",
            "When the certificate this server shows expires.",
            registry=registry,
        )
        self.authority_expiry = Gauge(
            "consilium_authority_expiry_timestamp_seconds",
            "When the authority that signs now expires.",
            registry=registry,
        )
        self.rounds_closed = Counter(
            "consilium_rounds_closed", "Rounds closed.", ["task", "by"], registry=registry
        )
        self.round_seconds = Histogram(
            "consilium_round_duration_seconds",
            "From opening a round to its consensus.",
            ["task"],
            buckets=(0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 14400, 86400),
            registry=registry,
        )
        self.close_seconds = Histogram(
            "consilium_round_close_seconds",
            "From the decision to close a round to its published consensus.",
            registry=registry,
        )
