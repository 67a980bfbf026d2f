"""What the coordinator counts. The registry is passed in; no label is unbounded.

Whatever can happen is on the page from the start, at 0: what begins at 1 has not increased, as Prometheus sees it.
"""

from __future__ import annotations

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
)

from coordinator.metrics.calls import CallMetrics
from coordinator.metrics.connections import ConnectionMetrics
from coordinator.metrics.handshakes import HandshakeRefusal
from coordinator.metrics.store_operations import StoreMetrics
from coordinator.metrics.tasks import TaskMetrics
from wire.errors import CATALOGUE
from wire.runtime.process_metrics import register_process_metrics

_CAST_BALLOT = "/consilium.v1.RoundsService/CastBallot"


class Metrics:
    """The coordinator's instruments."""

    def __init__(self, registry: CollectorRegistry) -> None:
        # A second series for each one, which Prometheus does not read.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        register_process_metrics(registry, "coordinator")
        self.calls = CallMetrics(registry)
        self.connections = ConnectionMetrics(registry)
        self.store = StoreMetrics(registry)
        self.tasks = TaskMetrics(registry)
        self._refusals = Counter(
            "consilium_refusals",
            "Calls refused, by the error catalogue's code.",
            ["code"],
            registry=registry,
        )
        self._ballots_refused = Counter(
            "consilium_ballots_refused",
            "Ballots refused, by the error catalogue's code.",
            ["code"],
            registry=registry,
        )
        for code in CATALOGUE:
            self._refusals.labels(code)
            self._ballots_refused.labels(code)
        self.handshakes_refused = Counter(
            "consilium_tls_handshakes_refused",
            "Connections that never became a call, by reason.",
            ["reason"],
            registry=registry,
        )
        for reason in HandshakeRefusal:
            self.handshakes_refused.labels(str(reason))
        self.renewals = Counter(
            "consilium_certificate_renewals",
            "Certificates renewed: silo, admin or server.",
            ["kind"],
            registry=registry,
        )
        for kind in ("silo", "admin", "server"):
            self.renewals.labels(kind)
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
        self.close_seconds = Histogram(
            "consilium_round_close_seconds",
            "From the decision to close a round to its published consensus.",
            registry=registry,
        )

    def refused(self, code: str, method: str) -> None:
        """Counts a refused call of `method`, a full name such as /consilium.v1.RoundsService/CastBallot."""
        self._refusals.labels(code).inc()
        if method == _CAST_BALLOT:
            self._ballots_refused.labels(code).inc()
